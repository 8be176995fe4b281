"""The vocabulary in the form that llguidance needs: the bytes of all tokens in a trie."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import llguidance

from octavo.text.tokenizer import Tokenizer


class Vocabulary(Protocol):
    """An `llguidance.LLTokenizer`. Building one takes about a second for 150,000 tokens."""

    vocab_size: int


class _Tokens:
    """The tokenizer interface that llguidance expects."""

    is_tokenizer_wrapper = True

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_id: int,
        special_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = list(tokens)
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.special_token_ids = list(special_ids)
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def vocabulary_of(tokenizer: Tokenizer, num_tokens: int) -> Vocabulary:
    """Return the vocabulary of a model whose output has `num_tokens` rows.

    Rows without a token are never allowed; tokens without a row are left out.
    """
    known = min(num_tokens, tokenizer.vocab_size)
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(known)]
    pieces += [b""] * (num_tokens - known)
    eos_ids = [token_id for token_id in tokenizer.eos_ids if token_id < num_tokens]
    special_ids = sorted(token_id for token_id in {*tokenizer.special_ids, *eos_ids} if token_id < num_tokens)
    return make_vocabulary(
        pieces, eos_ids, special_ids, lambda text: tokenizer.encode(text, add_special_tokens=False)
    )


def make_vocabulary(
    pieces: Sequence[bytes],
    eos_ids: Sequence[int],
    special_ids: Sequence[int],
    encode: Callable[[str], list[int]],
) -> Vocabulary:
    if not eos_ids:
        raise ValueError("a grammar needs a token that ends the answer, but this vocabulary has none")
    tokens: Any = _Tokens(pieces, eos_ids[0], special_ids, encode)
    return llguidance.LLTokenizer(tokens, eos_token=list(eos_ids))


def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary of 256 bytes and an end token, which is enough to check grammars."""
    pieces = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    return make_vocabulary(pieces, [256], [256], lambda text: list(text.encode()))
