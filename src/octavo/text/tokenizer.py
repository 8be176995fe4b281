"""Convert text to token ids and back with the `tokenizers` library."""

from collections.abc import Sequence
from typing import Any

import tokenizers

from octavo.errors import CheckpointError, RequestError
from octavo.text.assets import TextAssets
from octavo.text.token_bytes import TokenDecoder

_ID_LIMIT = 1 << 32  # the library raises an error for larger ids


class Tokenizer:
    """Immutable after construction, so threads may share it.

    `decode` joins the bytes of the tokens and decodes them as UTF-8, with U+FFFD for invalid bytes. It
    equals that of `tokenizers`, with one exception: if a run of byte-fallback tokens (`<0xF0>`) is invalid,
    `tokenizers` discards the whole run, and this class only the invalid part. Text can therefore be decoded
    token by token.
    """

    def __init__(self, assets: TextAssets) -> None:
        self._backend = _load_backend(assets.tokenizer_json)
        added = self._backend.get_added_tokens_decoder()
        named = (assets.bos_token, assets.eos_token, assets.pad_token, assets.unk_token)
        named_ids = {token: self._backend.token_to_id(token) for token in named if token is not None}
        known_named = {token_id for token_id in named_ids.values() if token_id is not None}

        self.bos_id: int | None = named_ids.get(assets.bos_token) if assets.bos_token is not None else None
        self.eos_id: int | None = named_ids.get(assets.eos_token) if assets.eos_token is not None else None
        self.eos_ids: tuple[int, ...] = assets.eos_ids
        self.special_ids: frozenset[int] = frozenset(i for i, t in added.items() if t.special) | known_named

        # The largest id plus one. There may be fewer tokens, because ids may have gaps. Not computed on first
        # use, because it takes up to 0.25 s, and the first use may be on the event loop of a server.
        self.vocab_size: int = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

        self._decoder = TokenDecoder(self._backend.decoder)
        self._pieces: dict[int, bytes] = {}
        self._library_adds_specials = assets.add_bos is None and assets.add_eos is None
        self._prefix = self._required_id(assets.add_bos, self.bos_id, "BOS")
        self._suffix = self._required_id(assets.add_eos, self.eos_id, "EOS")
        self._library_adds_bos = (
            self._library_adds_specials
            and self.bos_id is not None
            and self._backend.encode("", add_special_tokens=True).ids[:1] == [self.bos_id]
        )

    @staticmethod
    def _required_id(is_required: bool | None, token_id: int | None, name: str) -> list[int]:
        if not is_required:
            return []
        if token_id is None:
            raise CheckpointError(
                f"The tokenizer requires a {name} token on every prompt, but its vocabulary has none. "
                "The tokenizer files contradict each other: fetch them again, or pass `tokenizer`."
            )
        return [token_id]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text. A text that begins with the BOS string gets no second BOS."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        by_library = add_special_tokens and self._library_adds_specials
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=by_library)
        except (TypeError, UnicodeEncodeError) as error:
            raise RequestError(
                "The text cannot be tokenised: it must be a string of valid Unicode without lone surrogates.",
                "prompt",
            ) from error
        except BaseException as error:  # a Rust panic is not an `Exception`
            if not is_panic(error):
                raise
            raise RequestError("The model's tokenizer failed on this text.", "prompt") from error
        ids = [encoding.ids for encoding in encodings]
        return [self._with_specials(row) for row in ids] if add_special_tokens else ids

    def _with_specials(self, ids: list[int]) -> list[int]:
        if self._library_adds_specials:
            doubled = self._library_adds_bos and ids[1:2] == [self.bos_id]
            return ids[1:] if doubled else ids
        prefix = [] if ids[:1] == self._prefix else self._prefix
        return prefix + ids + self._suffix

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = [i for i in ids if self.is_shown(i, skip_special_tokens=skip_special_tokens)]
        pieces = [self.token_bytes(token_id, first=index == 0) for index, token_id in enumerate(shown)]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def is_shown(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Return whether a token contributes to the text. Ids outside the vocabulary (padding) do not."""
        if skip_special_tokens and token_id in self.special_ids:
            return False
        return self._token(token_id) is not None

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """Return the bytes that a token adds to the text; some tokenizers omit the first token's space."""
        if not first and token_id in self._pieces:
            return self._pieces[token_id]
        token = self._token(token_id)
        piece = b"" if token is None else self._decoder.piece(token, first=first)
        if not first:
            self._pieces[token_id] = piece
        return piece

    def token_text(self, token_id: int) -> str:
        """Return one token as readable text; an incomplete character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def _token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id) if 0 <= token_id < _ID_LIMIT else None
        return token


def is_panic(error: BaseException) -> bool:
    """Whether a Rust library panicked. Its exception type cannot be imported."""
    return type(error).__name__ == "PanicException"


def _load_backend(tokenizer_json: str) -> Any:
    try:
        backend = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises plain `Exception`
        raise CheckpointError(
            f"The tokenizer cannot be read ({_shortened(error)}). "
            "Fetch the checkpoint's tokenizer.json again, or pass another `tokenizer`."
        ) from error
    # Some files contain the settings of a training run, but prompts are never truncated or padded.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _shortened(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 300 else text[:300] + "..."
