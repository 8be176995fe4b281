"""Convert the tokens of one choice to the text, reasoning and calls that a client sees.

tokens --> text --> reasoning | calls | content --> content up to a stop string

Stop strings apply to content only, not to reasoning and calls.
"""

import hashlib
from functools import cached_property

import msgspec

from octavo.dialect.pieces import CallStart, Content, Other, Piece
from octavo.dialect.reader import AnswerReader
from octavo.frontend.intake import PreparedRequest
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop_strings import StopStringFilter
from octavo.text.tokenizer import Tokenizer


class ChoiceText:
    """Owned by one choice. `push` must not be called when `is_ended` is set."""

    def __init__(
        self, tokenizer: Tokenizer, request: PreparedRequest, choice: int, call_ids: "CallIds"
    ) -> None:
        params, format = request.params, request.format
        self._choice = choice
        self._call_ids = call_ids
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            keep=() if format is None else format.marker_ids,
            prompt_ids=request.prompt_ids,
        )
        self._reader = None if format is None else AnswerReader(format)
        self._max_calls = None if format is None else format.max_calls
        self._stop_filter = StopStringFilter(params.stop, include_stop=params.include_stop)
        self._others: list[Other] = []
        self._num_content = 0  # characters, including those that the stop filter holds back
        self.is_ended = False  # by a stop string, or because the maximum number of calls was reached
        self.num_reasoning = 0  # tokens, including those of the tags

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the choice."""
        return self._stop_filter.matched

    def push(self, token_id: int, *, may_stop: bool) -> str:
        """Add a token and return new content. `may_stop`: `min_tokens` is reached, so stop strings apply."""
        text = self._detokenizer.push((token_id,))
        if self._reader is None:
            return self._content(text, may_stop=may_stop)
        was_reasoning = self._reader.is_reasoning
        pieces = self._reader.push(text)
        self.num_reasoning += was_reasoning or self._reader.is_reasoning
        return self._sort_pieces(pieces, may_stop=may_stop)

    def finish(self) -> str:
        """Return the content that was held back, since no token follows."""
        text = self._detokenizer.finish()
        if self._reader is None:
            content = self._content(text, may_stop=True)
        else:
            content = self._sort_pieces(self._reader.push(text) + self._reader.finish(), may_stop=True)
        return content if self.is_ended else content + self._stop_filter.finish()

    def take_others(self) -> list[Other]:
        """Return reasoning and calls since the last call. `push` and `finish` return content."""
        if not self._others:
            return []
        others, self._others = self._others, []
        return others

    def _content(self, text: str, *, may_stop: bool) -> str:
        if not may_stop:
            return text
        text = self._stop_filter.push(text)
        self.is_ended = self._stop_filter.matched is not None
        return text

    def _sort_pieces(self, pieces: list[Piece], *, may_stop: bool) -> str:
        """Return the content, and keep the other pieces for `take_others`."""
        content: list[str] = []
        for piece in pieces:
            if isinstance(piece, Content):
                self._num_content += len(piece.text)
                content.append(self._content(piece.text, may_stop=may_stop))
            elif isinstance(piece, CallStart) and piece.index == self._max_calls:
                content.append(self._stop_filter.finish())
                self.is_ended = True
            elif isinstance(piece, CallStart):
                call_id = self._call_ids.of(self._choice, piece.index)
                self._others.append(CallStart(piece.index, piece.name, call_id, self._num_content))
            else:
                self._others.append(piece)
            if self.is_ended:
                break
        return "".join(content)


class CallIds:
    """Ids of the calls of one request: letters and digits, in the length that the model's template requires.

    Ids depend only on the request, so the same request with the same seed gets the same ids.
    """

    def __init__(self, request: PreparedRequest) -> None:
        self._request = request

    def of(self, choice: int, number: int) -> str:
        assert self._request.format is not None, "calls are read in a format"
        digest = hashlib.sha256(b"%b/%d/%d" % (self._key, choice, number)).hexdigest()
        return digest[: self._request.format.call_id_length]

    @cached_property
    def _key(self) -> bytes:
        """Computed once per request, because prompts may be long and calls many."""
        request = self._request
        return hashlib.sha256(msgspec.json.encode((request.prompt_ids, request.params.seed))).digest()
