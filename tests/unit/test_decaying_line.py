"""The line through recent measurements."""

import math
import random

import numpy as np
import pytest

from octavo.decaying_line import KEPT, DecayingLine


def line_through(*points: tuple[float, float]) -> DecayingLine:
    line = DecayingLine()
    for x, y in points:
        line.note(x, y)
    return line


def test_it_is_the_weighted_least_squares_line() -> None:
    random_ = random.Random(1)
    points = []
    for _ in range(120):
        x = random_.randint(1, 40)
        points.append((float(x), 30 + 0.5 * x + random_.random()))
    line = line_through(*points)
    weights = KEPT ** np.arange(len(points))[::-1]
    xs, ys = np.array(points).T
    slope, intercept = np.polyfit(xs, ys, 1, w=np.sqrt(weights))  # polyfit squares its weights
    assert line.slope(0.0) == pytest.approx(slope)
    assert [line.at(x, 0.0) for x in (0, 7, 100)] == pytest.approx(
        [intercept + slope * x for x in (0, 7, 100)]
    )
    assert (line.mean_x, line.mean_y) == pytest.approx(
        (np.average(xs, weights=weights), np.average(ys, weights=weights))
    )


def test_the_slope_has_bounds() -> None:
    falling = line_through((2, 5.0), (4, 3.0))
    assert falling.slope(0.1) == pytest.approx(0.1 * falling.mean_y)
    steep = line_through((8, 1.0), (9, 50.0))
    assert steep.slope(0.1) == pytest.approx(steep.mean_y / steep.mean_x)
    assert steep.at(0, 0.1) == pytest.approx(0)
    wide = line_through((100, 5.0), (100, 5.0))  # the bounds contradict each other
    assert wide.slope(0.1) == pytest.approx(0.05)


def test_without_points_or_with_zeros_all_is_zero() -> None:
    for line in (DecayingLine(), line_through((0, 0.0), (0, 0.0)), line_through((3, 0.0), (5, 0.0))):
        assert (line.mean_y, line.slope(0.1), line.at(4, 0.1)) == (0, 0, 0)


def test_only_zeros_of_x_give_the_minimum() -> None:
    assert line_through((0, 2.0), (0, 2.0)).slope(0.1) == pytest.approx(0.2)


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, -math.inf)])
def test_points_that_are_not_finite_are_ignored(bad: tuple[float, float]) -> None:
    good = (1.0, 3.0), (2.0, 4.0), (5.0, 6.0)
    line, expected = line_through(*good[:2], bad, *good[2:]), line_through(*good)
    assert (line.mean_x, line.mean_y, line.slope(0)) == (expected.mean_x, expected.mean_y, expected.slope(0))
