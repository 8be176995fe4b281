"""A step costs the scheduler the same whatever waits and however many pages there are."""

import pytest

from octavo.simulate.scale import Load, median_step_milliseconds

NUM_RUNNING = 512
MOST_MILLISECONDS = 3.0
NOISE = 1.25


@pytest.mark.timing
@pytest.mark.parametrize(
    ("what", "small", "large"),
    [
        ("waiting", Load(NUM_RUNNING, 100, 1_000_000), Load(NUM_RUNNING, 10_000, 1_000_000)),
        ("pages", Load(NUM_RUNNING, 10_000, 20_000), Load(NUM_RUNNING, 10_000, 1_000_000)),
    ],
)
def test_step_time_at_scale(what: str, small: Load, large: Load, capsys: pytest.CaptureFixture[str]) -> None:
    # What else the machine does only ever adds to a time: the best of three medians is the scheduler's own.
    rounds = [median_step_milliseconds([small, large], num_steps=120) for _ in range(3)]
    at_small, at_large = min(rounds, key=lambda medians: medians[1])
    with capsys.disabled():
        print(f"\nscheduler, median of a step: {at_small:.2f} ms with {small}")
        print(f"                             {at_large:.2f} ms with {large}")
        print(f"                             ratio by {what}: {at_large / at_small:.2f}")
    assert at_large <= MOST_MILLISECONDS
    assert at_large / at_small <= NOISE
