"""The tokens of one choice to what a client sees of them.

tokens --> text --> reasoning | calls | content --> content up to a stop string

Reasoning and calls are not searched for stop strings: those are about the answer.
"""

from octavo.dialect.pieces import CallStart, Content, Piece
from octavo.dialect.reader import AnswerReader
from octavo.frontend.intake import PreparedRequest
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop_strings import StopStringFilter
from octavo.text.tokenizer import Tokenizer


class ChoiceText:
    """Owned by one choice. After `is_ended`, nothing is pushed any more."""

    def __init__(self, tokenizer: Tokenizer, request: PreparedRequest) -> None:
        params, format = request.params, request.format
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            keep=() if format is None else format.marker_ids,
            prompt_ids=request.prompt_ids,
        )
        self._reader = None if format is None else AnswerReader(format)
        self._max_calls = None if format is None else format.max_calls
        self._stop_filter = StopStringFilter(params.stop, include_stop=params.include_stop)
        self.is_ended = False  # by a stop string, or before a call too many
        self.num_reasoning = 0  # tokens, those of the tags included

    @property
    def stop_string(self) -> str | None:
        """The one that ended it."""
        return self._stop_filter.matched

    def push(self, token_id: int, *, may_stop: bool) -> list[Piece]:
        """`may_stop`: it is late enough for a stop string to end the text."""
        text = self._detokenizer.push((token_id,))
        if self._reader is None:
            return self._filtered([Content(text)] if text else [], may_stop=may_stop)
        was_reasoning = self._reader.is_reasoning
        pieces = self._reader.push(text)
        self.num_reasoning += was_reasoning or self._reader.is_reasoning
        return self._filtered(pieces, may_stop=may_stop)

    def finish(self) -> list[Piece]:
        """What was held back, now that no token follows."""
        text = self._detokenizer.finish()
        if self._reader is None:
            pieces: list[Piece] = [Content(text)]
        else:
            pieces = self._reader.push(text) + self._reader.finish()
        pieces = self._filtered(pieces, may_stop=True)
        if not self.is_ended:
            pieces.append(Content(self._stop_filter.finish()))
        return pieces

    def _filtered(self, pieces: list[Piece], *, may_stop: bool) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content) and may_stop:
                kept.append(Content(self._stop_filter.push(piece.text)))
                self.is_ended = self._stop_filter.matched is not None
            elif isinstance(piece, CallStart) and piece.index == self._max_calls:
                kept.append(Content(self._stop_filter.finish()))
                self.is_ended = True
            else:
                kept.append(piece)
            if self.is_ended:
                break
        return kept
