"""Convert the text of an answer to pieces as it arrives."""

import contextlib

import msgspec

from octavo.dialect.choose import CALL_ID_LENGTH
from octavo.dialect.families import Family, gemma, hermes, llama, mistral, no_calls
from octavo.dialect.pieces import Piece, merged
from octavo.dialect.reasoning import Reasons, reasoning_before
from octavo.dialect.scan import END, Sink
from octavo.dialect.strict_calls import strict_calls
from octavo.dialect.tools import Tools

FAMILIES: dict[str, Family] = {"hermes": hermes, "llama": llama, "mistral": mistral, "gemma": gemma}
FORMATS = FAMILIES | {"strict": strict_calls}


class AnswerFormat(msgspec.Struct, frozen=True):
    """What an answer may contain besides text."""

    reasons: Reasons = Reasons.NEVER
    family: str | None = None  # a key of `FORMATS`; None: do not detect calls
    tools: Tools = Tools()
    max_calls: int | None = None  # the answer ends before the next call
    marker_ids: tuple[int, ...] = ()  # special tokens that the reader needs in the text
    call_id_length: int = CALL_ID_LENGTH
    lead: str = ""  # the beginning of the answer, which is already in the prompt


class AnswerReader:
    """Belongs to one choice. Its pieces, joined, do not depend on how the text was divided into pushes."""

    def __init__(self, format: AnswerFormat) -> None:
        self._sink = Sink()
        family = no_calls if format.family is None else FORMATS[format.family]
        self._scan = reasoning_before(family(self._sink, format.tools), self._sink, format.reasons)
        next(self._scan)
        self.push(format.lead)

    @property
    def is_reasoning(self) -> bool:
        return self._sink.is_reasoning

    def push(self, text: str) -> list[Piece]:
        for char in text:
            self._scan.send(char)
        return self._take_pieces()

    def finish(self) -> list[Piece]:
        """Return the pieces that were held back; no more text follows."""
        with contextlib.suppress(StopIteration):
            self._scan.send(END)
        self._sink.end_content()
        return self._take_pieces()

    def _take_pieces(self) -> list[Piece]:
        pieces, self._sink.pieces = self._sink.pieces, []
        return merged(pieces)
