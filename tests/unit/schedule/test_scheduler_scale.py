"""A step costs the scheduler the same whatever waits and however many pages there are."""

import pytest

from octavo.simulate.scale import Load, median_step_milliseconds

NUM_RUNNING = 512
MOST_MILLISECONDS = 3.0
NOISE = 1.25


@pytest.mark.timing
@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("what", "small", "large"),
    [
        ("waiting", Load(NUM_RUNNING, 100, 1_000_000), Load(NUM_RUNNING, 10_000, 1_000_000)),
        ("pages", Load(NUM_RUNNING, 10_000, 20_000), Load(NUM_RUNNING, 10_000, 1_000_000)),
    ],
)
def test_step_time_at_scale(what: str, small: Load, large: Load, capsys: pytest.CaptureFixture[str]) -> None:
    at_small, at_large = median_step_milliseconds([small, large], num_steps=200)
    with capsys.disabled():
        print(f"\nscheduler, median of a step: {at_small:.2f} ms with {small}")
        print(f"                             {at_large:.2f} ms with {large}")
        print(f"                             ratio by {what}: {at_large / at_small:.2f}")
    assert at_large <= MOST_MILLISECONDS
    assert at_large / at_small <= NOISE
