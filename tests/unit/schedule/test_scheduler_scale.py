"""A step costs the scheduler the same whatever waits and however many pages there are."""

import sys
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from octavo.simulate.scale import WARM_UP_STEPS, Load, LoadedScheduler, median_step_milliseconds

if TYPE_CHECKING:
    from _typeshed import TraceFunction

# It repeats what others cover; and coverage would be counted.
pytestmark = pytest.mark.usefixtures("untraced")

NUM_RUNNING = 256
MOST = 1.25  # how much more a step may cost with the larger load
LOADS = [
    ("waiting", Load(NUM_RUNNING, 100, 1_000_000), Load(NUM_RUNNING, 5_000, 1_000_000)),
    ("pages", Load(NUM_RUNNING, 5_000, 20_000), Load(NUM_RUNNING, 5_000, 1_000_000)),
]


@pytest.mark.parametrize(("what", "small", "large"), LOADS)
def test_a_step_runs_as_much_python_at_scale(
    what: str, small: Load, large: Load, figure: Callable[[str], None]
) -> None:
    at_small, at_large = (opcodes_of_a_step(load) for load in (small, large))
    figure(f"scheduler, bytecodes of a step: {at_small:.0f} and, with more {what}, {at_large:.0f}")
    assert at_large <= MOST * at_small


@pytest.mark.parametrize(("what", "small", "large"), LOADS)
def test_a_step_takes_as_long_at_scale(
    what: str, small: Load, large: Load, figure: Callable[[str], None]
) -> None:
    """For what bytecodes do not show: a list that is searched or sorted in C."""
    at_small, at_large = median_step_milliseconds([small, large], num_steps=60)
    figure(f"scheduler, median of a step: {at_small:.2f} ms and, with more {what}, {at_large:.2f} ms")
    assert at_large <= 2 * MOST * at_small


def opcodes_of_a_step(load: Load) -> float:
    loaded = LoadedScheduler(load)
    for _ in range(WARM_UP_STEPS):
        loaded.step()
    counts = [opcodes(loaded.step) for _ in range(20)]
    loaded.check_load()
    return median(counts)


def opcodes(work: Callable[[], None]) -> int:
    """How many bytecodes of scheduler and cache it runs: the same on every machine, however busy."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction | None":
        nonlocal count
        if event == "call":
            if not any(f"/octavo/{part}/" in frame.f_code.co_filename for part in ("schedule", "cache")):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    tracer = sys.gettrace()  # coverage's
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(tracer)
    return count
