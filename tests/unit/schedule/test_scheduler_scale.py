"""The scheduler's cost per step does not depend on queue length or number of blocks."""

import sys
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from octavo.simulate.scale import WARM_UP_STEPS, LoadedScheduler, SchedulerLoad, step_milliseconds

if TYPE_CHECKING:
    from _typeshed import TraceFunction

# Other tests cover this code, and coverage would add to the measured cost.
pytestmark = pytest.mark.usefixtures("untraced")

NUM_RUNNING = 256
MAX_RATIO = 1.25  # maximum ratio of the cost per step with the larger load
LOADS = [
    ("waiting", SchedulerLoad(NUM_RUNNING, 100, 1_000_000), SchedulerLoad(NUM_RUNNING, 5_000, 1_000_000)),
    ("blocks", SchedulerLoad(NUM_RUNNING, 5_000, 20_000), SchedulerLoad(NUM_RUNNING, 5_000, 1_000_000)),
    (
        "tenants",
        SchedulerLoad(NUM_RUNNING, 5_000, 1_000_000),
        SchedulerLoad(NUM_RUNNING, 5_000, 1_000_000, 500),
    ),
]


@pytest.mark.parametrize(("what", "small", "large"), LOADS)
def test_scale_does_not_change_the_bytecodes_per_step(
    what: str, small: SchedulerLoad, large: SchedulerLoad, figure: Callable[[str], None]
) -> None:
    at_small, at_large = (opcodes_of_a_step(load) for load in (small, large))
    figure(f"scheduler, bytecodes of a step: {at_small:.0f} and, with more {what}, {at_large:.0f}")
    assert at_large <= MAX_RATIO * at_small


@pytest.mark.parametrize(("what", "small", "large"), LOADS)
def test_scale_does_not_change_the_time_per_step(
    what: str, small: SchedulerLoad, large: SchedulerLoad, figure: Callable[[str], None]
) -> None:
    """Detects costs that bytecodes do not show, such as searching or sorting a list in C.

    The fastest steps are compared, because other work on the machine only adds to a step.
    """
    at_small, at_large = map(min, step_milliseconds([small, large], num_steps=60))
    figure(f"scheduler, fastest step: {at_small:.2f} ms and, with more {what}, {at_large:.2f} ms")
    assert at_large <= 2 * MAX_RATIO * at_small


def opcodes_of_a_step(load: SchedulerLoad) -> float:
    loaded = LoadedScheduler(load)
    for _ in range(WARM_UP_STEPS):
        loaded.step()
    counts = [opcodes(loaded.step) for _ in range(20)]
    loaded.check_load()
    return median(counts)


def opcodes(work: Callable[[], None]) -> int:
    """Count the bytecodes of scheduler and cache: the same on every machine under any load."""
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
