"""Log-probabilities in the three formats of the API."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from octavo.protocol import LOGPROB_FLOOR, TokenLogprob
from octavo.server.http.sse import encode
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer

ENTRIES_PER_PIECE = 64


def finite(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR)


def encoded(entries: Iterable[object]) -> msgspec.Raw:
    """Return a list as JSON, encoded in small pieces.

    Entries are many times larger as objects than as JSON, and the encoder lets no other thread run.
    """
    remaining = iter(entries)
    pieces = iter(lambda: list(itertools.islice(remaining, ENTRIES_PER_PIECE)), [])
    return msgspec.Raw(b"[" + b",".join(encode(piece)[1:-1] for piece in pieces) + b"]")


def chat_logprobs(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    return {"content": encoded(chat_entries(tokenizer, logprobs)), "refusal": None}


def chat_entries(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob]) -> Iterator[dict[str, Any]]:
    return (_chat_entry(tokenizer, entry) for entry in logprobs)


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    return _chat_token(tokenizer, entry.token_id, entry.logprob) | {
        "top_logprobs": [_chat_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def legacy_token(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the text of a token, or its bytes if it is not valid UTF-8, so that tokens stay distinct."""
    piece = tokenizer.token_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class LegacyLogprobs:
    """Logprobs of one choice of a completion, in pieces. Text offsets continue from an echoed prompt on."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._text = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def of_prompt(
        self,
        prompt_ids: Sequence[int],
        scores: Sequence[TokenLogprob],
        answer: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        """Return the entries of the prompt and of an answer after it. The first token has no probability."""
        scored = [(score.token_id, score) for score in itertools.chain(scores, answer)]
        return self._entries([(prompt_ids[0], None), *scored])

    def of_answer(self, scores: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._entries([(score.token_id, score) for score in scores])

    def _entries(self, scored: Sequence[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        offsets = []
        for token_id, _ in scored:
            offsets.append(self._offset)
            self._offset += len(self._text.push((token_id,)))
        return {
            "tokens": [legacy_token(self._tokenizer, token_id) for token_id, _ in scored],
            "token_logprobs": [None if score is None else finite(score.logprob) for _, score in scored],
            "top_logprobs": encoded(None if score is None else self._top(score) for _, score in scored),
            "text_offset": offsets,
        }

    def _top(self, score: TokenLogprob) -> dict[str, float]:
        """Return the most probable tokens, and the token itself if it is not among them."""
        best: dict[str, float] = {}
        for token_id, logprob in (*score.top, (score.token_id, score.logprob)):
            best.setdefault(legacy_token(self._tokenizer, token_id), finite(logprob))
        return best


def prompt_logprobs(tokenizer: Tokenizer, scores: Sequence[TokenLogprob]) -> msgspec.Raw:
    """Return, for each prompt token, its alternatives by token id; null for the first token."""
    return encoded(itertools.chain([None], (_by_id(tokenizer, score) for score in scores)))


def _by_id(tokenizer: Tokenizer, score: TokenLogprob) -> dict[str, Any]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(score.top, start=1)}
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": ranks.get(token_id),
            "decoded_token": tokenizer.token_text(token_id),
        }
        for token_id, logprob in dict([*score.top, (score.token_id, score.logprob)]).items()
    }
