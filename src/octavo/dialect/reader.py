"""From the text of an answer, as it comes, to its pieces."""

import contextlib

import msgspec

from octavo.dialect.choose import CALL_ID_LENGTH
from octavo.dialect.families import Family, gemma, hermes, llama, mistral, no_calls
from octavo.dialect.pieces import Piece, merged
from octavo.dialect.reasoning import Reasons, reasoning_before
from octavo.dialect.scan import END, Sink
from octavo.dialect.tools import Tools

FAMILIES: dict[str, Family] = {"hermes": hermes, "llama": llama, "mistral": mistral, "gemma": gemma}


class AnswerFormat(msgspec.Struct, frozen=True):
    """What to look for in an answer, apart from text."""

    reasons: Reasons = Reasons.NEVER
    family: str | None = None  # of `FAMILIES`; None: calls are not looked for
    tools: Tools = Tools()
    max_calls: int | None = None  # the answer ends before one more
    marker_ids: tuple[int, ...] = ()  # special tokens that are text to the reader
    call_id_length: int = CALL_ID_LENGTH
    lead: str = ""  # the beginning of the answer that the prompt has written already


class AnswerReader:
    """Owned by one choice. All pushes and `finish` together give the same, however the text was cut."""

    def __init__(self, format: AnswerFormat) -> None:
        self._sink = Sink()
        family = no_calls if format.family is None else FAMILIES[format.family]
        self._scan = reasoning_before(family(self._sink, format.tools), self._sink, format.reasons)
        next(self._scan)
        self.push(format.lead)

    @property
    def is_reasoning(self) -> bool:
        return self._sink.is_reasoning

    def push(self, text: str) -> list[Piece]:
        for char in text:
            self._scan.send(char)
        return self._taken()

    def finish(self) -> list[Piece]:
        """What was held back, now that nothing follows it."""
        with contextlib.suppress(StopIteration):
            self._scan.send(END)
        self._sink.end_content()
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._sink.pieces = self._sink.pieces, []
        return merged(pieces)
