"""Frames fit any terminal and show the data of any server."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.status import ReplicaState
from octavo.top.connection import Unavailable
from octavo.top.history import History
from octavo.top.layout import FLEET_HELP, HELP, PARTS, Shown, frame, snapshot
from octavo.top.paint import ASCII, UNICODE, Glyphs, Line, rendered
from octavo.top.panels import Space
from octavo.view import AwayEvent, StepView
from unit.top.seen import FACTS, a_finished, a_fleet, a_fleet_history, a_history, a_replica

HISTORIES = {
    "nothing yet": History(),
    "idle": a_history(1, 0),
    "some": a_history(),
    "many": a_history(40, 200, 120_000),
    "one replica": a_fleet_history("r0"),
    "3 replicas": a_fleet_history("r0", "r1", "r2", state=ReplicaState.FAILED, problem="no memory" * 30),
    "1000 replicas": a_fleet_history(*[f"r{number}" for number in range(1000)]),
    "odd replicas": a_fleet_history(
        "", "a\033" * 40, "9" * 5000, kv_blocks_total=0, moves_in=10**9, tokens=10**12
    ),
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
def test_every_frame_fits_its_terminal(
    width: int, height: int, name: str, shown: Shown, glyphs: Glyphs
) -> None:
    lines = frame(HISTORIES[name], width, height, glyphs, shown, paused=False)
    assert len(lines) == height
    plain = [rendered(line, width, colour=False) for line in lines]
    coloured = [rendered(line, width, colour=True) for line in lines]
    assert all(len(line) <= width for line in plain)
    assert [re.sub(r"\033\[[0-9;]*m", "", line).rstrip() for line in coloured] == plain
    assert any(keys[:width].startswith(plain[-1]) for keys in (HELP, FLEET_HELP))
    assert glyphs is UNICODE or text(lines).isascii()


def test_a_small_terminal_shows_every_panel() -> None:
    shown = text(frame(HISTORIES["many"], 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    for word in ("tiny", "tokens/s", "KV blocks", "Steps", "Running", "Finished", "Prefix tree", "q quit"):
        assert word in shown


def test_unused_rows_go_to_other_panels() -> None:
    lines = frame(a_history(5, 40), 100, 110, UNICODE, Shown.ALL, paused=False)
    shown = text(lines)
    assert shown.count("cdef") >= 40, "every request must have a line"
    assert "more" not in shown.split("Running")[1].split("Finished")[0]


@pytest.mark.parametrize("shown", [one for one in Shown if one is not Shown.ALL])
def test_a_selected_panel_fills_the_screen(shown: Shown) -> None:
    history = HISTORIES["3 replicas"]
    alone = text(frame(history, 100, 50, UNICODE, shown, paused=True))
    titles = ("Replicas", "KV blocks", "Steps", "Running", "Finished", "Prefix tree")
    panel = text(PARTS[shown].panel(history, Space(100, 50, UNICODE)))
    assert [name for name in titles if name in alone] == [panel.split("  ")[0]]
    assert "paused" in alone


def test_a_snapshot_lists_every_request() -> None:
    history = a_history(3, 50)
    shown = text(snapshot(history, 120, ASCII), 120)
    assert shown.count("cmpl") == 0
    assert shown.count("cdef") >= 50
    assert history.view is not None
    assert f"and {history.view.tree.left_out} more" in shown.splitlines()[-1]
    assert "100 " in shown


def test_steps_and_finished_requests_show_drafts() -> None:
    """Drafted tokens are not tokens of a prompt, although their slice computes several tokens."""
    history = a_history(1)
    assert "accepted" not in text(snapshot(history, 200, UNICODE))
    slices = ((0, 5, 4, 4), (1, 5, 1, 1), (2, 0, 64, 0))
    history.steps.append(StepView(99, 1000.0, 0.01, slices, (), ((0, 3, 2),)))
    choice = a_finished().octavo["requests"][0]["choices"][0]  # type: ignore[index]
    drafted = {**choice, "drafted_tokens": 12, "accepted_tokens": 9}
    history.finished.append(a_finished(octavo={"requests": [{"choices": [drafted]}]}))
    shown = text(snapshot(history, 200, UNICODE))
    assert "99: 10.0 ms, 2 decodes, 2 of 3 drafts accepted, 64 tokens of 1 prompt" in shown
    assert "9 of 12 drafts accepted" in shown
    assert re.search(r"accepted +█$", shown, re.MULTILINE)


def test_finished_requests_show_durations_and_errors() -> None:
    history = a_history(1)
    history.finished.append(a_finished(status=429, error="rate_limit_exceeded", octavo=None))
    history.finished.append(a_finished(status=None, finish_reason="abort", octavo=None))
    shown = text(snapshot(history, 200, UNICODE))
    assert "length, queue 100 ms, prefill 200 ms in 1 chunk, decode 300 ms, 1 preemption" in shown
    assert "rate_limit_exceeded" in shown
    assert re.search(r"closed .* abort", shown)


def test_server_text_is_sanitised_for_the_terminal() -> None:
    history = a_history(1)
    evil = "\033]0;evil\007\r\n\u202e汉"
    assert history.facts is not None
    history.note(Unavailable(evil))
    history.finished.append(a_finished(error=evil, response_id=evil, finish_reason=evil))
    history.facts = type(FACTS)(replica=evil, model=evil, version=evil, facts=FACTS.facts, uptime_seconds=1.0)
    for lines in (
        snapshot(history, 200, UNICODE),
        frame(history, 200, 60, UNICODE, Shown.ALL, paused=False),
    ):
        shown = text(lines).replace("\n", "")
        assert not set(shown) & set("\033\007\r\u202e汉")
        assert "evil" in shown
    history.note(a_fleet(1, a_replica(1, evil, problem=evil), a_replica(1, "r1")))
    history.choose(evil, evil)
    shown = text(snapshot(history, 200, UNICODE)).replace("\n", "")
    assert not set(shown) & set("\033\007\r\u202e汉")
    assert shown.count("evil") > 5


def test_an_unavailable_engine_is_shown() -> None:
    history = a_history()
    history.note(AwayEvent(state="loading", done=50, total=200))
    shown = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False))
    assert "the engine is loading 25 %" in shown
    history.note(AwayEvent(state="failed"))
    assert "the engine has failed" in text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False))
