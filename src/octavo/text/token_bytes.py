"""The bytes that a single token adds to the text."""

import json
from collections.abc import Iterator
from typing import Any

from octavo.errors import CheckpointError

_PER_TOKEN_KINDS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}
_NEIGHBOUR = "a"  # represents the text before a token that is not the first


class TokenDecoder:
    """Applies a `tokenizers` decoder to single tokens.

    Supported decoders convert a token independently of its position, except for the first token of a text.
    Pieces are bytes because byte-level and byte-fallback tokens may contain part of a character.
    """

    def __init__(self, decoder: Any) -> None:
        kinds = set(_kinds(_spec(decoder)))
        self._decoder = decoder
        self._byte_of_char = _byte_of_char() if "ByteLevel" in kinds else {}
        self._byte_fallback = "ByteFallback" in kinds
        unknown = kinds - ({"ByteLevel", "Fuse"} if "ByteLevel" in kinds else _PER_TOKEN_KINDS)
        if unknown:
            raise CheckpointError(
                f"The tokenizer's decoder has unsupported parts: {', '.join(sorted(unknown))}. "
                f"Supported are ByteLevel, or a sequence of {', '.join(sorted(_PER_TOKEN_KINDS))}."
            )

    def piece(self, token: str, *, first: bool) -> bytes:
        if self._byte_of_char:
            try:
                return bytes([self._byte_of_char[char] for char in token])
            except KeyError:  # an added token is plain text
                return token.encode()
        if self._byte_fallback and (byte := _fallback_byte(token)) is not None and byte >= 0x80:
            return bytes([byte])
        if self._decoder is None:
            return (token if first else " " + token).encode()
        if first:
            return str(self._decoder.decode([token])).encode()
        return str(self._decoder.decode([_NEIGHBOUR, token])).removeprefix(_NEIGHBOUR).encode()


def _spec(decoder: Any) -> dict[str, Any]:
    if decoder is None:
        return {"type": "Sequence", "decoders": []}
    spec: dict[str, Any] = json.loads(decoder.__getstate__())
    return spec


def _kinds(spec: dict[str, Any]) -> Iterator[str]:
    if spec["type"] == "Sequence":
        for part in spec["decoders"]:
            yield from _kinds(part)
    else:
        yield spec["type"]


def _fallback_byte(token: str) -> int | None:
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 maps to itself, U+0100 and up to the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
