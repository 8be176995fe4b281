"""A line through measurements, of which recent ones count more."""

import math

KEPT = 0.98  # of the weight of earlier points, with each point
MIN_VARIANCE = 0.01  # of x; below it, the points do not show a slope


class DecayingLine:
    """The line y = a + b x with the smallest sum of squares. Neither x nor y is negative."""

    def __init__(self) -> None:
        # Weighted sums over all points of: 1, x, x * x, y, x * y.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)

    def note(self, x: float, y: float) -> None:
        """Add a point. One that is not finite would spoil all later results, and is ignored."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        new = (1.0, x, x**2, y, x * y)
        one, xs, squares, ys, products = (
            KEPT * earlier + value for earlier, value in zip(self._sums, new, strict=True)
        )
        self._sums = one, xs, squares, ys, products

    @property
    def mean_x(self) -> float:
        return self._sums[1] / self._sums[0] if self._sums[0] else 0.0

    @property
    def mean_y(self) -> float:
        return self._sums[3] / self._sums[0] if self._sums[0] else 0.0

    def slope(self, min_part: float) -> float:
        """Return b, but at least `min_part` of the mean y, and never so much that `a` is negative.

        The second bound wins. x may not have varied: then this is `min_part` of the mean y.
        """
        one, _, squares, _, products = self._sums
        if not one:
            return 0.0
        variance = squares / one - self.mean_x**2
        slope = 0.0
        if variance > MIN_VARIANCE:
            slope = (products / one - self.mean_x * self.mean_y) / variance
        slope = max(slope, min_part * self.mean_y)
        return min(slope, self.mean_y / self.mean_x) if self.mean_x else slope

    def at(self, x: float, min_part: float) -> float:
        """Return y on the line with this slope through the means. 0 before the first point."""
        return self.mean_y + self.slope(min_part) * (x - self.mean_x)
