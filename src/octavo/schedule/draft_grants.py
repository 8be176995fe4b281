"""How many tokens the worker's draft model may draft for each sequence of a step.

The scheduler only grants a number: the worker drafts the tokens within the step, because each needs the one
before it. It may draft fewer.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Sequential

from octavo.plan import DraftPass
from octavo.schedule.break_even import Duration, RowCosts
from octavo.schedule.pass_costs import PassCosts, StepForecast, assumed_pass, worth_granting
from octavo.schedule.sequence import Sequence
from octavo.schedule.sequence_drafts import FIRST_CHANCE, Acceptance

# Steps without a grant after which a sequence gets one draft as a test, if it would be worth it for a model
# that has not been measured. Unlike text, the model cannot guess for free, and a sequence may have become
# easier to predict, or the model faster.
TEST_STEPS = 64


class DraftGrants:
    """Mutated by `Drafts` only."""

    def __init__(self, costs: RowCosts, context: int) -> None:
        """`context`: how many tokens the draft model can see."""
        self._costs = costs
        self._context = context
        self._passes = PassCosts()
        self._acceptance = Acceptance()  # of all sequences

    def note_passes(self, passes: Iterable[DraftPass], step_seconds: float) -> None:
        """Note the passes of a step that takes `step_seconds` without them."""
        self._passes.note(passes, step_seconds)

    def note(self, sequence: Sequence, num_accepted: int, num_drafted: int) -> None:
        """Note the drafts of a slice that was verified."""
        assert sequence.drafts is not None
        sequence.drafts.steps_since_grant = 0
        sequence.drafts.model_acceptance.note(num_accepted, num_drafted)
        self._acceptance.note(num_accepted, num_drafted)

    def chance(self, sequence: Sequence) -> float:
        """Return how likely a draft is accepted if those before it are."""
        assert sequence.drafts is not None
        return sequence.drafts.model_acceptance.chance(self._acceptance.chance(FIRST_CHANCE))

    def are_better(self, sequence: Sequence, text_chance: float, step: StepForecast, max_depth: int) -> bool:
        """Return whether drafts of the model are worth more than drafts of text with this chance."""
        if not self._may_draft(sequence, step):
            return False
        per_row = self._costs.at(int(step.tokens)).per_row
        passes = self._passes_beside(step, per_row)
        by_text = step.best_rate(text_chance, per_row, max_depth)
        seconds_per_draft = passes.per_row + passes.fixed / step.tokens  # all sequences may share a pass
        return step.best_rate(self.chance(sequence), seconds_per_draft, max_depth) > by_text

    def depths(
        self,
        sequences: Sequential[Sequence],
        step: StepForecast,
        num_rows: int,
        max_depth: int,
        max_total: int,
    ) -> list[int]:
        """Return how many tokens to grant each sequence, in a step with `num_rows` other rows."""
        may_draft = [self._may_draft(one, step) for one in sequences]
        per_row = self._costs.at(num_rows).per_row
        chances = [self.chance(one) if may else 0.0 for one, may in zip(sequences, may_draft, strict=True)]
        passes = self._passes_beside(step, per_row)
        depths = worth_granting(chances, step, passes, max_depth, max_total)
        due: list[int] = []
        for index, sequence in enumerate(sequences):
            assert sequence.drafts is not None
            if not depths[index]:
                sequence.drafts.steps_since_grant += 1
                if may_draft[index] and sequence.drafts.steps_since_grant > TEST_STEPS:
                    due.append(index)
        unmeasured = with_row(assumed_pass(step.seconds), per_row)
        tests = worth_granting([FIRST_CHANCE] * len(due), step, unmeasured, 1, max_total - sum(depths))
        for index, depth in zip(due, tests, strict=True):
            depths[index] = depth
        return depths

    def _passes_beside(self, step: StepForecast, per_row: float) -> Duration:
        # Before steps were measured, their durations have another unit than those of passes.
        return with_row((self._passes if self._costs.is_known else PassCosts()).at(step.seconds), per_row)

    def _may_draft(self, sequence: Sequence, step: StepForecast) -> bool:
        """Return whether the answer has taken as long as the draft model needs to compute the prompt.

        Whether an answer is worth that is not known before its end. So at most as much time is lost on a
        short answer as it takes anyway, and a long one begins to gain soon.
        """
        if len(sequence.token_ids) >= self._context:
            return False
        assert sequence.drafts is not None
        passes = self._passes if self._costs.is_known else PassCosts()
        needed = passes.catch_up_seconds(sequence.num_prompt, step.seconds)
        return sequence.drafts.num_steps * step.seconds >= needed


def with_row(passes: Duration, per_row: float) -> Duration:
    """Return the duration of passes of which each row adds another row to the step, which takes `per_row`."""
    return Duration(passes.fixed, passes.per_row + per_row)
