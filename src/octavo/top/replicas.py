"""The panel of the replicas: one row each, with its state, load, prefix hits and moves of requests."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.config import counted
from octavo.status import ReplicaState, ReplicaStatus
from octavo.top.fleet import Rates, natural
from octavo.top.history import History
from octavo.top.paint import CellStyle, Line, Span, clean, line, sparkline
from octavo.top.panels import Space, title

MAX_NAME = 16  # columns
CHART = 10  # columns of the chart of loads
SHOWN, OTHER = "> ", "  "  # marks of the replica whose engine is shown, and of the others

STYLES = {
    ReplicaState.READY: CellStyle.GOOD,
    ReplicaState.UNREACHABLE: CellStyle.BAD,
    ReplicaState.FAILED: CellStyle.BAD,
}


@dataclass(frozen=True)
class ReplicaColumn:
    """Its heading is as wide as its values should be."""

    heading: str
    text: Callable[[ReplicaStatus, Rates], str]


def _age(seconds: float | None) -> str:
    """Return a duration in at most 6 columns."""
    if seconds is None:
        return "-"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 100 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"


def _moves(replica: ReplicaStatus, _: Rates) -> str:
    moves_in, moves_out = [
        f"{number}" if number < 10_000 else f"{number // 1000}k"
        for number in (replica.moves_in, replica.moves_out)
    ]
    return f"+{moves_in} -{moves_out}"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def _kv_use(replica: ReplicaStatus, _: Rates) -> str:
    return _percent(replica.kv_blocks_used / replica.kv_blocks_total if replica.kv_blocks_total else None)


def _tokens(_: ReplicaStatus, rates: Rates) -> str:
    return "-" if rates.tokens_per_second is None else f"{rates.tokens_per_second:,.0f}"


LOAD = ReplicaColumn(" load", lambda _, rates: _percent(rates.load))
# After name and state. If space is short, the last ones are left out.
COLUMNS = (
    ReplicaColumn("    up", lambda replica, _: _age(replica.uptime_seconds)),
    ReplicaColumn(" run", lambda replica, _: f"{replica.running:,}"),
    ReplicaColumn(" wait", lambda replica, _: f"{replica.waiting:,}"),
    ReplicaColumn("   KV", _kv_use),
    LOAD,
    ReplicaColumn(" tok/s", _tokens),
    ReplicaColumn(" hits", lambda _, rates: _percent(rates.hits)),
    ReplicaColumn("moves +/-", _moves),
    ReplicaColumn("restarts", lambda replica, _: f"{replica.restarts:,}"),
)
STATE = max(len(state) for state in ReplicaState)


def lines_of_replicas(history: History, _: int) -> int:
    """Return 0 for a single replica: the other panels show all of it."""
    number = len(history.fleet.replicas)
    return 0 if number < 2 else 2 + number


def replicas(history: History, space: Space) -> list[Line]:
    """Return the replicas in natural order; if there are too many, those that are not ready come first."""
    fleet = history.fleet.latest
    if fleet is None:
        return [title("Replicas", "", space)][: space.height]
    lines = [title("Replicas", _summary(history), space)]
    ranked = sorted(fleet.replicas, key=lambda replica: natural(replica.name))
    room = space.height - 2
    num_hidden = 0
    if len(ranked) > room:
        ranked.sort(key=lambda replica: replica.state is ReplicaState.READY)  # stable
        num_hidden = len(ranked) - max(0, room - 1)
        ranked = ranked[: max(0, room - 1)]
    name_columns = min(MAX_NAME, max([len("name"), *[len(clean(replica.name)) for replica in ranked]]))
    table = _Table(history, space, name_columns)
    lines.append(table.head())
    lines += [table.row(replica) for replica in ranked]
    if num_hidden:
        lines.append(line(Span(f"{OTHER}and {num_hidden:,} more", CellStyle.DIM)))
    return lines[: space.height]


def _summary(history: History) -> str:
    fleet = history.fleet.latest
    assert fleet is not None, "checked by the caller"
    num_ready = len([1 for replica in fleet.replicas if replica.state is ReplicaState.READY])
    words = [f"{num_ready:,} of {len(fleet.replicas):,} ready", counted(fleet.requests, "request")]
    if fleet.unsent:
        words.append(f"{fleet.unsent:,} of them unsent")
    words.append(counted(fleet.moves, "move"))
    return ", ".join(words)


class _Table:
    """The columns that fit into a space."""

    def __init__(self, history: History, space: Space, name_columns: int) -> None:
        self._history = history
        self._glyphs = space.glyphs
        self._name_columns = name_columns
        left = space.width - len(OTHER) - name_columns - 1 - STATE
        self._columns: list[ReplicaColumn] = []
        for column in COLUMNS:
            left -= 1 + len(column.heading)
            if left < 0:
                break
            self._columns.append(column)
        self._has_charts = left > CHART  # beside the loads

    def head(self) -> Line:
        cells = [f"{OTHER}{'name':<{self._name_columns}} {'state':<{STATE}}"]
        for column in self._columns:
            cells.append(column.heading)
            if column is LOAD and self._has_charts:
                cells.append(" " * CHART)
        return line(Span(" ".join(cells), CellStyle.DIM))

    def row(self, replica: ReplicaStatus) -> Line:
        rates = self._history.fleet.rates(replica)
        is_shown = replica.name == self._history.shown_replica
        name = clean(replica.name)[: self._name_columns]
        spans = [
            Span(
                f"{SHOWN if is_shown else OTHER}{name:<{self._name_columns}} ",
                CellStyle.BOLD if is_shown else CellStyle.PLAIN,
            ),
            Span(f"{replica.state:<{STATE}}", STYLES.get(replica.state, CellStyle.WARN)),
        ]
        for column in self._columns:
            spans.append(Span(f" {column.text(replica, rates):>{len(column.heading)}}"))
            if column is LOAD and self._has_charts:
                chart = sparkline(rates.loads, CHART, self._glyphs.bars, full_scale=1.0)
                spans.append(Span(f" {chart}", CellStyle.GOOD))
        return line(*spans, Span(f" {clean(replica.problem or '')}", CellStyle.DIM))
