"""Every figure, in the size for CI and in full size."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from load import connections, deaths, disconnects, fairness, overload, purity, shutdown, soak, streams
from load.figure import Row, Start

Measure = Callable[[Start], list[Row]]


@dataclass(frozen=True)
class Figure:
    name: str
    short: Measure
    full: Measure


FIGURES = (
    Figure(
        "streams",
        partial(streams.measure, streams=256, tokens=64, distinct=24),
        partial(streams.measure, streams=256, tokens=64, distinct=256),
    ),
    Figure(
        "purity",
        partial(purity.measure, requests=200, load=32, tokens=8),
        partial(purity.measure, requests=200, load=32, tokens=48),
    ),
    Figure(
        "idle",
        partial(connections.measure, idle=2000, active=32, requests=160, rounds=2),
        partial(connections.measure, idle=2000, active=32, requests=640, rounds=6),
    ),
    Figure(
        "overload",
        partial(overload.measure, seconds=6, rounds=1, factor=10, tokens=100),
        partial(overload.measure, seconds=60, rounds=4, factor=10, tokens=100),
    ),
    Figure(
        "fairness",
        partial(fairness.measure, flood=100, singles=5, tokens=8_000, limited_seconds=0),
        partial(fairness.measure, flood=550, singles=60, tokens=20_000, limited_seconds=240),
    ),
    Figure(
        "disconnects",
        partial(disconnects.measure, rounds=1, clients=5),
        partial(disconnects.measure, rounds=5, clients=5),
    ),
    Figure(
        "slow-readers",
        partial(connections.measure_slow_readers, slow=4, neighbours=16, stalled_seconds=2, tokens=400),
        partial(connections.measure_slow_readers, slow=16, neighbours=32, stalled_seconds=10, tokens=400),
    ),
    Figure(
        "kill",
        partial(deaths.measure_kills, kills=3, streams=16, tokens=300),
        partial(deaths.measure_kills, kills=5, streams=16, tokens=400),
    ),
    Figure(
        "stop",
        partial(deaths.measure_stop, streams=4, tokens=300),
        partial(deaths.measure_stop, streams=16, tokens=400),
    ),
    Figure(
        "sigterm",
        partial(shutdown.measure, times=1, streams=64, tokens=200),
        partial(shutdown.measure, times=3, streams=64, tokens=400),
    ),
    Figure(
        "soak",
        partial(soak.measure, warm_up=600, requests=1200, parts=4, texts=300),
        partial(soak.measure, warm_up=12_000, requests=20_000, parts=1, texts=100_000),
    ),
)
