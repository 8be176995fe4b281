"""The panel of the replicas."""

import pytest

from octavo.status import ReplicaState
from octavo.top.history import History
from octavo.top.layout import FLEET_HELP, Shown, frame, snapshot
from octavo.top.paint import ASCII, UNICODE, CellStyle, Line, rendered
from octavo.top.panels import Space
from octavo.top.replicas import replicas
from octavo.view import AwayEvent
from unit.top.seen import a_fleet, a_fleet_history, a_history, a_replica

THREE = ("r10", "r0", "r2")


def text(lines: list[Line], width: int) -> list[str]:
    return [rendered(line, width, colour=False) for line in lines]


def panel(history: History, width: int, height: int) -> list[str]:
    return text(replicas(history, Space(width, height, ASCII)), width)


def test_a_row_has_state_load_hits_and_moves() -> None:
    title, head, *rows = panel(a_fleet_history(*THREE), 80, 10)
    assert "Replicas  3 of 3 ready, 9 requests, 2 of them unsent, 12 moves" in title
    assert head == "  name state           up  run  wait    KV  load  tok/s  hits moves +/- restarts"
    figures = "ready          4 s    3     1  25 %  50 %     10  40 %     +5 -7        2"
    assert rows == [f"> r0   {figures}", f"  r2   {figures}", f"  r10  {figures}"]


@pytest.mark.parametrize(
    ("state", "style"),
    [
        (ReplicaState.READY, CellStyle.GOOD),
        (ReplicaState.SUSPECTED, CellStyle.WARN),
        (ReplicaState.DRAINING, CellStyle.WARN),
        (ReplicaState.RESTARTING, CellStyle.WARN),
        (ReplicaState.UNREACHABLE, CellStyle.BAD),
        (ReplicaState.FAILED, CellStyle.BAD),
    ],
)
def test_states_have_colours(state: ReplicaState, style: CellStyle) -> None:
    history = a_fleet_history("r0", "r1", state=state, uptime_seconds=None, kv_blocks_total=0, problem="why")
    *_, row = replicas(history, Space(140, 10, UNICODE))
    (span,) = (span for span in row if span.text.strip() == state)
    assert span.style == style
    assert rendered(row, 140, colour=False).endswith("why")


def test_columns_are_left_out_as_a_whole() -> None:
    history = a_fleet_history(*THREE)
    complete = panel(history, 80, 10)
    for width in range(20, 80):
        _, head, *rows = panel(history, width, 10)
        for line, whole in zip((head, *rows), complete[1:], strict=True):
            assert whole.startswith(line)
            assert len(line) == len(whole) or whole[len(line)] == " "


@pytest.mark.parametrize("height", [0, 1, 2, 3, 4, 7, 50])
def test_of_many_replicas_those_that_are_not_ready_come_first(height: int) -> None:
    names = [f"r{number}" for number in range(1000)]
    lines = panel(a_fleet_history(*names, state=ReplicaState.SUSPECTED), 80, height)
    assert len(lines) == height
    if height > 3:
        shown = [line.removeprefix(">").split()[0] for line in lines[2:-1]]
        assert shown == ["r999", *names[: height - 4]]
        assert lines[-1] == f"  and {1000 - len(shown)} more"


def test_a_single_replica_is_only_shown_alone() -> None:
    history, without = a_fleet_history("r0"), a_history()
    for size in ((80, 24), (120, 40)):
        frames = [frame(one, *size, UNICODE, Shown.ALL, paused=False) for one in (history, without)]
        assert frames[0] == frames[1]
    assert snapshot(history, 120, ASCII) == snapshot(without, 120, ASCII)
    alone = text(frame(history, 80, 24, UNICODE, Shown.REPLICAS, paused=False), 80)
    assert any(line.startswith("> r0") for line in alone)


def test_several_replicas_are_below_the_charts_and_in_a_snapshot() -> None:
    history = a_fleet_history(*THREE)
    lines = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    assert "serving  r0 of 3 (automatic)" in lines[0]
    assert lines[5].startswith("running")
    assert lines[6].startswith("Replicas")
    assert [line[:5].split()[-1] for line in lines[8:11]] == ["r0", "r2", "r10"]
    assert lines[11].startswith("KV blocks")
    assert lines[-1] == FLEET_HELP, "all keys fit"
    assert any(line.startswith("Replicas") for line in text(snapshot(history, 120, ASCII), 120))


def test_the_header_names_the_chosen_replica_and_why_it_has_no_engine() -> None:
    history = a_fleet_history("r0", "r1", state=ReplicaState.FAILED, problem="no memory")
    history.choose("r1", "r2 was removed")
    history.note(AwayEvent(state="failed"))
    lines = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    assert lines[1:3] == ["  r2 was removed", "  the engine of r1 has failed: no memory"]
    history.note(a_fleet(9, a_replica(9, "r0"), a_replica(9, "r1")))
    history.note(a_history().view or AwayEvent(state="failed"))
    history.dismiss_notice()
    lines = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    assert "serving  r1 of 2  " in lines[0]
    assert any(line.startswith("> r1") for line in lines)
    history.note(a_fleet(10, a_replica(10, "r0"), a_replica(10, "r1", state=ReplicaState.SUSPECTED)))
    lines = text(frame(history, 80, 24, UNICODE, Shown.ALL, paused=False), 80)
    assert "suspected  r1 of 2  " in lines[0]
