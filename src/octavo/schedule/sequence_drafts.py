"""What is known of the drafts of one sequence."""

from collections.abc import Iterable

from octavo.drafting.proposer import Proposer

FIRST_CHANCE = 0.6  # that a drafted token is accepted, before any was
KEPT = 0.9  # of the weight of earlier drafts, with each draft
PRIOR_WEIGHT = 2.0  # how many tokens count as much as the prior


class Acceptance:
    """How likely a drafted token is accepted if those before it are. Recent drafts count more."""

    def __init__(self) -> None:
        self._accepted = 0.0
        self._judged = 0.0

    def note(self, num_accepted: int, num_drafted: int) -> None:
        """Add a draft. Tokens after a rejected one say nothing."""
        judged = min(num_accepted + 1, num_drafted)
        self._accepted = KEPT * self._accepted + num_accepted
        self._judged = KEPT * self._judged + judged

    def chance(self, prior: float) -> float:
        """Return the estimate. `prior` is the estimate of a sequence without drafts."""
        return (self._accepted + PRIOR_WEIGHT * prior) / (self._judged + PRIOR_WEIGHT)


class SequenceDrafts:
    """Mutated by `Drafts` only.

    A sequence whose drafts are not worth their rows is still tested now and then: a guess is compared with
    the tokens that follow. This takes no row of a step.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.acceptance = Acceptance()  # of drafts from text
        self.model_acceptance = Acceptance()  # of those of the draft model
        self.num_steps = 0  # in which it decoded
        self.steps_since_grant = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_read = 0  # tokens of the sequence that the proposer has seen
        self.steps_since_guess = 0
        self._guess: tuple[int, ...] = ()
        self._num_right = 0  # leading tokens of the guess that followed

    @property
    def has_guess(self) -> bool:
        return bool(self._guess)

    def guess(self, token_ids: tuple[int, ...]) -> None:
        """Compare the next tokens with these."""
        self._guess, self._num_right = token_ids, 0
        self.steps_since_guess = 0

    def note_draft(self, num_accepted: int, num_drafted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted

    def note_tokens(self, token_ids: Iterable[int]) -> None:
        """Compare tokens of the answer with the guess."""
        for token in token_ids:
            if not self._guess:
                return
            is_right = token == self._guess[self._num_right]
            self._num_right += is_right
            if not is_right or self._num_right == len(self._guess):
                self.acceptance.note(self._num_right, len(self._guess))
                self._guess = ()
