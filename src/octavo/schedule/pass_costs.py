"""What the passes of the draft model take, and for how many tokens they are worth it.

A draft of the model adds a row to the step, as each draft does, and a row to one of its passes. All sequences
of a step share the passes: the first one drafts one token for each, the second one another.

    tokens per second =          (rows without drafts + sum of the drafts' chances)
                        ---------------------------------------------------------------------------
                        (fixed + per_row * all rows)  +  sum over passes of (fixed + per_row * rows)
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.decaying_line import KEPT, DecayingLine
from octavo.plan import DraftPass
from octavo.schedule.break_even import LONGEST, MARGIN, MIN_SLOPE, Duration, measured

# Before the first measurement, as parts of a step: a pass, and catching up with one token.
ASSUMED_PASS = 0.35
ASSUMED_CATCH_UP = 1 / 64


class PassCosts:
    """Durations of passes, measured."""

    def __init__(self) -> None:
        self._line = DecayingLine()  # (rows, seconds) of passes that draft
        self._caught_up = self._catch_up_seconds = 0.0

    def note(self, passes: Iterable[DraftPass], step_seconds: float) -> None:
        """Add the passes of a step that takes `step_seconds` without them.

        A pause of the whole process would end all drafting, so a pass counts as no longer than the step:
        that is too long to be worth it, but a few shorter passes outweigh it.
        """
        for one in passes:
            if one.catches_up:
                self._caught_up = KEPT * self._caught_up + one.num_rows
                seconds = min(one.seconds, LONGEST * step_seconds)
                self._catch_up_seconds = KEPT * self._catch_up_seconds + seconds
            else:
                self._line.note(one.num_rows, min(one.seconds, step_seconds))

    def at(self, step_seconds: float) -> Duration:
        """Return the duration of passes beside steps that take `step_seconds`."""
        return measured(self._line) if self._line.mean_y > 0 else assumed_pass(step_seconds)

    def catch_up_seconds(self, num_tokens: int, step_seconds: float) -> float:
        """Return how long the draft model takes to compute so many known tokens."""
        if self._caught_up:
            return num_tokens * self._catch_up_seconds / self._caught_up
        return num_tokens * ASSUMED_CATCH_UP * step_seconds


def assumed_pass(step_seconds: float) -> Duration:
    seconds = ASSUMED_PASS * step_seconds
    return Duration((1 - MIN_SLOPE) * seconds, MIN_SLOPE * seconds)


class StepForecast(NamedTuple):
    """The tokens that a step is expected to yield, and the seconds that it is expected to take."""

    tokens: float
    seconds: float

    def best_rate(self, chance: float, seconds_per_draft: float, max_depth: int) -> float:
        """Return the tokens per second with as many drafts for one sequence as are good for it."""
        best, (tokens, seconds), each = 0.0, self, chance
        for _ in range(max_depth):
            best = max(best, tokens / seconds)
            tokens, seconds, each = tokens + each, seconds + seconds_per_draft, each * chance
        return max(best, tokens / seconds)


def worth_granting(
    chances: Sequence[float], step: StepForecast, passes: Duration, max_depth: int, max_total: int
) -> list[int]:
    """Return how many tokens the draft model should draft for each sequence.

    `step` is without these drafts. `passes.per_row` includes what a draft adds to the step. No sequence gets
    more than `max_depth` drafts, and all together not more than `max_total`.
    """
    depths = [0] * len(chances)
    tokens, seconds = step
    fixed, each = passes
    members = sorted(range(len(chances)), key=lambda index: -chances[index])
    for depth in range(1, max_depth + 1):
        break_even = MARGIN * tokens / seconds
        members = [index for index in members if chances[index] ** depth > break_even * each][:max_total]
        gain = sum([chances[index] ** depth for index in members])
        cost = fixed + len(members) * each
        if gain <= break_even * cost:
            break
        for index in members:
            depths[index] = depth
        max_total -= len(members)
        tokens, seconds = tokens + gain, seconds + cost
    return depths
