"""Token ids to text, as they come."""

import codecs
from collections.abc import Iterator, Sequence

from octavo.text.tokenizer import Tokenizer

_LONGEST_UNFINISHED = 3  # bytes of a UTF-8 character that still lacks its last


class IncrementalDetokenizer:
    """Emits whole characters only; the cost of a token does not depend on what came before.

    With P the bytes of the prompt's tokens and G those pushed, all pushes and `finish` together give
    `(P + G).decode()` without what the whole characters of P give: for a prompt that ends on a character
    border, exactly what `decode(prompt_ids + ids)` adds to `decode(prompt_ids)`. U+FFFD stands only where the
    decode of the whole has it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        keep: Sequence[int] = (),
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`keep` are special tokens that are shown all the same."""
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
        """What is left: U+FFFD if the last character never became whole."""
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
        """Enough of the prompt's last bytes to know an unfinished character; None if it shows no token."""
        tail: bytes | None = None
        for token_id in reversed(prompt_ids):
            if self._is_shown(token_id):
                tail = self._tokenizer.token_bytes(token_id) + (tail or b"")
                if len(tail) >= _LONGEST_UNFINISHED:
                    break
        return tail
