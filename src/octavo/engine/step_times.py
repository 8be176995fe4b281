"""What prompts and sequences add to the duration of a step, measured.

Routers compare replicas in seconds, and each replica knows best how fast it is.
"""

from collections.abc import Sequence

from octavo.decaying_line import KEPT, DecayingLine
from octavo.plan import SequenceSlice

# The minimum that a sequence adds, as a part of a step with only sequences that decode. The number of
# sequences may not have varied, and then the measurement cannot tell the parts of a step apart.
MIN_PART = 0.05


class StepTimes:
    """Owned by EngineCore."""

    def __init__(self) -> None:
        self._decodes = DecayingLine()  # (rows, seconds) of steps that only decode
        self._prompt_tokens = self._prompt_seconds = 0.0

    def note(self, slices: Sequence[SequenceSlice], num_drafted: int, seconds: float) -> None:
        """Add a step with so many drafts."""
        lengths = [piece.num_known for piece in slices]
        num_prompt_tokens = sum(length for length in lengths if length > 1)
        num_decodes = lengths.count(1)
        num_rows = num_decodes + num_drafted  # a drafted row adds about as much as a sequence
        if num_prompt_tokens:
            rest = max(0.0, seconds - (self._decodes.at(num_rows, MIN_PART) if num_rows else 0.0))
            self._prompt_tokens = KEPT * self._prompt_tokens + num_prompt_tokens
            self._prompt_seconds = KEPT * self._prompt_seconds + rest
        elif num_decodes:
            self._decodes.note(num_rows, seconds)

    @property
    def per_prompt_token(self) -> float:
        return self._prompt_seconds / self._prompt_tokens if self._prompt_tokens else 0.0

    @property
    def per_sequence(self) -> float:
        """The slope of a line through steps that only decode. At most a sequence's share of such a step."""
        return self._decodes.slope(MIN_PART)
