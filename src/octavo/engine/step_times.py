"""What prompts and sequences add to the duration of a step, measured.

Routers compare replicas in seconds, and each replica knows best how fast it is.
"""

from collections.abc import Iterable

from octavo.plan import SequenceSlice

KEPT = 0.98  # of the weight of earlier steps, with each step
# The minimum that a sequence adds, as a part of a step with only sequences that decode. The number of
# sequences may not have varied, and then the measurement cannot tell the parts of a step apart.
MIN_PART = 0.05


class StepTimes:
    """Owned by EngineCore."""

    def __init__(self) -> None:
        # Sums over steps that only decode, of: 1, sequences, their square, seconds, sequences * seconds.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._prompt_tokens = self._prompt_seconds = 0.0

    def note(self, slices: Iterable[SequenceSlice], seconds: float) -> None:
        """Add a step."""
        lengths = [len(piece.token_ids) for piece in slices]
        num_prompt_tokens = sum(length for length in lengths if length > 1)
        num_decodes = lengths.count(1)
        if num_prompt_tokens:
            decode_seconds = self._mean_seconds + self.per_sequence * (num_decodes - self._mean_sequences)
            rest = max(0.0, seconds - (decode_seconds if num_decodes else 0.0))
            self._prompt_tokens = KEPT * self._prompt_tokens + num_prompt_tokens
            self._prompt_seconds = KEPT * self._prompt_seconds + rest
        elif num_decodes:
            new = (1.0, num_decodes, num_decodes**2, seconds, num_decodes * seconds)
            one, sequences, squares, total, products = (
                KEPT * earlier + value for earlier, value in zip(self._sums, new, strict=True)
            )
            self._sums = one, sequences, squares, total, products

    @property
    def per_prompt_token(self) -> float:
        return self._prompt_seconds / self._prompt_tokens if self._prompt_tokens else 0.0

    @property
    def per_sequence(self) -> float:
        """The slope of a line through steps that only decode."""
        one, _, squares, _, products = self._sums
        if not one:
            return 0.0
        variance = squares / one - self._mean_sequences**2
        slope = 0.0
        if variance > 0.01:
            slope = (products / one - self._mean_sequences * self._mean_seconds) / variance
        # A sequence cannot add more than its share of the step. With many sequences, this is below MIN_PART.
        return min(max(slope, MIN_PART * self._mean_seconds), self._mean_seconds / self._mean_sequences)

    @property
    def _mean_sequences(self) -> float:
        return self._sums[1] / self._sums[0] if self._sums[0] else 0.0

    @property
    def _mean_seconds(self) -> float:
        return self._sums[3] / self._sums[0] if self._sums[0] else 0.0
