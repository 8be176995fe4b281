"""Convert token ids to text incrementally."""

import codecs
from collections.abc import Iterator, Sequence

from octavo.text.tokenizer import Tokenizer

_MAX_PARTIAL_BYTES = 3  # of an incomplete UTF-8 character


class IncrementalDetokenizer:
    """Emits complete characters only; the cost of a token does not depend on the number of tokens before it.

    Let P be the bytes of the prompt's tokens and G the bytes of the pushed tokens. The results of all pushes
    and of `finish`, joined, equal `(P + G).decode()` without the text of the complete characters of P. If the
    prompt ends at a character boundary, that is exactly what `decode(prompt_ids + ids)` adds to
    `decode(prompt_ids)`. U+FFFD occurs only where decoding everything at once also produces it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        keep: Sequence[int] = (),
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`keep` lists special tokens that are shown even if special tokens are skipped."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._keep = frozenset(keep)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True
        tail = self._tail(prompt_ids)
        if tail is not None:
            self._at_start = False
            self._utf8.decode(tail)

    def push(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join(self._pieces(token_ids)))

    def finish(self) -> str:
        """Return the remaining text: U+FFFD if the last character is incomplete."""
        return self._utf8.decode(b"", final=True)

    def _pieces(self, token_ids: Sequence[int]) -> Iterator[bytes]:
        for token_id in token_ids:
            if self._is_shown(token_id):
                yield self._tokenizer.token_bytes(token_id, first=self._at_start)
                self._at_start = False

    def _is_shown(self, token_id: int) -> bool:
        skips = self._skip_special_tokens and token_id not in self._keep
        return self._tokenizer.is_shown(token_id, skip_special_tokens=skips)

    def _tail(self, prompt_ids: Sequence[int]) -> bytes | None:
        """Return at least the bytes of an incomplete last character; None if the prompt shows no token."""
        tail: bytes | None = None
        for token_id in reversed(prompt_ids):
            if self._is_shown(token_id):
                tail = self._tokenizer.token_bytes(token_id) + (tail or b"")
                if len(tail) >= _MAX_PARTIAL_BYTES:
                    break
        return tail
