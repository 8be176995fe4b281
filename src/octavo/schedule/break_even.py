"""How many tokens to draft, so that a step yields more tokens per second than without drafts.

A draft adds one row to a step. The row takes time, and its token is worth something only if it is accepted:

    tokens per second = (rows without drafts + sum of the drafts' chances) / (fixed + per_row * all rows)

A draft whose chance is above its break-even, per_row * (tokens per second), raises this figure.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from octavo.decaying_line import DecayingLine

# A row adds at least this part of a mean step. While the number of rows does not vary, a row is believed to
# add only this: low enough to draft, which varies the number of rows, so that the cost is measured.
MIN_SLOPE = 0.02
ASSUMED_SLOPE = 0.1  # the same, before the first measurement
LONGEST = 8.0  # times the mean step: a longer step counts as this
MARGIN = 1.1  # A draft must be worth this many times its break-even: chances and costs are estimates.


class Duration(NamedTuple):
    """A step, or a pass of the draft model, takes `fixed + per_row * num_rows` seconds."""

    fixed: float
    per_row: float


def measured(line: DecayingLine) -> Duration:
    """Return the duration that a line of (rows, seconds) gives; `per_row` is always positive."""
    return Duration(max(0.0, line.at(0, MIN_SLOPE)), line.slope(MIN_SLOPE))


class RowCosts:
    """What rows add to a step that only decodes, measured."""

    def __init__(self) -> None:
        self._line = DecayingLine()  # (rows, seconds)

    def note(self, num_rows: int, seconds: float) -> None:
        """Add a step that only decoded. Its rows include those of drafts."""
        # A pause of the whole process says nothing of rows, and would count for hundreds of steps.
        limit = LONGEST * self._line.mean_y if self.is_known else seconds
        self._line.note(num_rows, min(seconds, limit))

    @property
    def is_known(self) -> bool:
        return self._line.mean_y > 0

    def at(self, num_rows: int) -> Duration:
        """Return the duration of steps with about `num_rows` rows.

        Before the first measurement, the unit is not a second, but one step of `num_rows` rows.
        """
        if self.is_known:
            return measured(self._line)
        per_row = min(ASSUMED_SLOPE, 1 / max(num_rows, 1))
        return Duration(max(0.0, 1 - per_row * num_rows), per_row)


def worth_drafting(
    chances: Sequence[float], num_rows: int, max_depth: int, max_total: int, costs: RowCosts
) -> list[int]:
    """Return how many tokens to draft for each sequence.

    `chances[i]`, from 0 to 1, is the probability that a draft of sequence i is accepted if all before it are.
    `num_rows`, at least the number of `chances`, counts the rows of the step without drafts: each yields a
    token. No sequence gets more than `max_depth` drafts, and all together not more than `max_total`.
    """
    depths = [0] * len(chances)
    if max_depth < 1 or not depths:
        return depths
    fixed, per_row = costs.at(num_rows)
    tokens = float(num_rows)
    seconds = fixed + per_row * num_rows
    # The next draft of each sequence. A draft never has a better chance than the one before it, so that
    # drafts come from the heap in the order of their chances, and none after the first failure is worth it.
    heap = [(-chance, index) for index, chance in enumerate(chances)]
    heapify(heap)
    for _ in range(max_total):
        if not heap:
            break
        negated, index = heap[0]
        if -negated * seconds <= MARGIN * tokens * per_row:
            break
        tokens -= negated
        seconds += per_row
        depths[index] += 1
        if depths[index] < max_depth:
            heapreplace(heap, (negated * chances[index], index))
        else:
            heappop(heap)
    return depths
