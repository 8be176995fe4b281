"""What was charged within a minute."""

from itertools import accumulate


def max_in_a_minute(charges: list[tuple[float, int]]) -> int:
    """Return the maximum over all intervals of 60 s that begin with a charge."""
    totals = [0, *accumulate(units for _, units in charges)]
    largest = end = 0
    for begin, (time, _) in enumerate(charges):
        while end < len(charges) and charges[end][0] < time + 60:
            end += 1
        largest = max(largest, totals[end] - totals[begin])
    return largest
