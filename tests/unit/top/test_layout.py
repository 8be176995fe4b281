"""Any terminal, any server: every picture fits, and shows what there is."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.top.connection import Away
from octavo.top.history import History
from octavo.top.layout import HELP, PARTS, Shown, frame, snapshot
from octavo.top.paint import ASCII, UNICODE, Glyphs, Line, rendered
from octavo.top.panels import Space
from octavo.view import AwayEvent
from unit.top.seen import FACTS, a_finished, a_history

HISTORIES = {
    "nothing yet": History(),
    "idle": a_history(1, 0),
    "some": a_history(),
    "many": a_history(40, 200, 120_000),
}


def text(lines: list[Line], width: int = 200) -> str:
    return "\n".join(rendered(line, width, colour=False) for line in lines)


@settings(deadline=None)
@given(
    width=st.integers(20, 250),
    height=st.integers(5, 80),
    name=st.sampled_from(sorted(HISTORIES)),
    shown=st.sampled_from(list(Shown)),
    glyphs=st.sampled_from([UNICODE, ASCII]),
)
def test_every_picture_fits_its_terminal(
    width: int, height: int, name: str, shown: Shown, glyphs: Glyphs
) -> None:
    lines = frame(HISTORIES[name], width, height, glyphs, shown, paused=False)
    assert len(lines) == height
    plain = [rendered(line, width, colour=False) for line in lines]
    coloured = [rendered(line, width, colour=True) for line in lines]
    assert all(len(line) <= width for line in plain)
    assert [re.sub(r"\033\[[0-9;]*m", "", line).rstrip() for line in coloured] == plain
    assert HELP[:width].startswith(plain[-1])
    assert glyphs is UNICODE or text(lines).isascii()


def test_in_a_small_terminal_every_part_has_its_place() -> None:
    shown = text(frame(HISTORIES["many"], 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    for word in ("tiny", "tokens/s", "KV pages", "Steps", "Running", "Finished", "Prefix tree", "q quit"):
        assert word in shown


def test_room_that_one_part_does_not_need_the_others_get() -> None:
    lines = frame(a_history(5, 40), 100, 110, UNICODE, Shown.ALL, paused=False)
    shown = text(lines)
    assert shown.count("cdef") >= 40, "every request has a line"
    assert "more" not in shown.split("Running")[1].split("Finished")[0]


@pytest.mark.parametrize("shown", [one for one in Shown if one is not Shown.ALL])
def test_one_part_alone_has_the_screen(shown: Shown) -> None:
    history = HISTORIES["many"]
    alone = text(frame(history, 100, 50, UNICODE, shown, paused=True))
    assert [
        name for name in ("KV pages", "Steps", "Running", "Finished", "Prefix tree") if name in alone
    ] == [text(PARTS[shown].panel(history, Space(100, 50, UNICODE))).split("  ")[0]]
    assert "paused" in alone


def test_a_picture_for_scripts_leaves_nothing_out() -> None:
    history = a_history(3, 50)
    shown = text(snapshot(history, 120, ASCII), 120)
    assert shown.count("cmpl") == 0
    assert shown.count("cdef") >= 50
    assert "100 " in shown


def test_why_a_request_took_so_long_or_failed() -> None:
    history = a_history(1)
    history.finished.append(a_finished(status=429, error="rate_limit_exceeded", octavo=None))
    history.finished.append(a_finished(status=None, finish_reason="abort", octavo=None))
    shown = text(snapshot(history, 200, UNICODE))
    assert "length, queue 100 ms, prompt 200 ms in 1, answer 300 ms, 1 preemption" in shown
    assert "rate_limit_exceeded" in shown
    assert re.search(r"gone .* abort", shown)


def test_nothing_a_server_says_reaches_the_terminal_as_it_is() -> None:
    history = a_history(1)
    evil = "\033]0;evil\007\r\n\u202e汉"
    assert history.facts is not None
    history.note(Away(evil))
    history.finished.append(a_finished(error=evil, response_id=evil, finish_reason=evil))
    history.facts = type(FACTS)(model=evil, version=evil, facts=FACTS.facts, uptime_seconds=1.0)
    for lines in (
        snapshot(history, 200, UNICODE),
        frame(history, 200, 60, UNICODE, Shown.ALL, paused=False),
    ):
        shown = text(lines).replace("\n", "")
        assert not set(shown) & set("\033\007\r\u202e汉")
        assert "evil" in shown


def test_an_engine_that_is_away_is_said_to_be() -> None:
    history = a_history()
    history.note(AwayEvent(state="loading", done=50, total=200))
    shown = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False))
    assert "the engine is loading 25 %" in shown
    history.note(AwayEvent(state="failed"))
    assert "the engine has failed" in text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False))
