"""Convert the tokenizer of a GGUF file to the format of the `tokenizers` library.

A GGUF file contains the vocabulary, but of the rule that splits text only the name (`tokenizer.ggml.pre`),
and no merges for SentencePiece tokenizers. This module restores both, so that ids equal those of the original
tokenizer.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, TypeVar

import msgspec

from octavo.errors import CheckpointError
from octavo.text.assets import TextAssets
from octavo.text.split_rules import split_rule

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_SPACE = "\u2581"  # how SentencePiece represents a space

# Tokens that end a turn or a text. Files often declare only one of them as EOS; models use several.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]

    def ids_of(self, *types: _TokenType) -> Iterator[tuple[int, str]]:
        return ((i, t) for i, t in enumerate(self.tokens) if self.types[i] in types)


def text_assets_from_gguf(metadata: Mapping[str, Any]) -> TextAssets:
    """Build the assets from `metadata`, which maps the file's keys to plain Python values."""
    kind = _value(metadata, "tokenizer.ggml.model", str)
    if kind == "gpt2":
        vocabulary = _vocabulary(metadata)
        tokenizer, adds_bos = _byte_level(metadata, vocabulary)
    elif kind == "llama":
        vocabulary = _with_replaced_spaces(_vocabulary(metadata))
        tokenizer, adds_bos = _sentencepiece(metadata, vocabulary), True
    else:
        raise CheckpointError(
            f"The GGUF file has a tokenizer of kind {kind!r}; supported kinds are 'gpt2' (byte-level BPE) "
            "and 'llama' (SentencePiece BPE). Pass a tokenizer directory with `tokenizer`."
        )
    eos_id = _token_id(metadata, "eos", vocabulary)
    return TextAssets(
        tokenizer_json=msgspec.json.encode(tokenizer).decode(),
        bos_token=_token(metadata, "bos", vocabulary),
        eos_token=None if eos_id is None else vocabulary.tokens[eos_id],
        pad_token=_token(metadata, "padding", vocabulary),
        unk_token=_token(metadata, "unknown", vocabulary),
        eos_ids=_end_ids(metadata, vocabulary),
        add_bos=_value(metadata, "tokenizer.ggml.add_bos_token", bool, default=adds_bos),
        add_eos=_value(metadata, "tokenizer.ggml.add_eos_token", bool, default=False),
        chat_template=_value(metadata, "tokenizer.chat_template", str, default=None),
        named_templates=_named_templates(metadata),
    )


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    rule = split_rule(_split_rule_name(metadata))
    prefix_space = _value(metadata, "tokenizer.ggml.add_space_prefix", bool, default=False)
    vocab = _vocab(vocabulary)
    merges = [merge.split(" ", 1) for merge in _list(metadata, "tokenizer.ggml.merges", str)]
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in vocab:
            raise _merges_unknown(merge)
    if not vocab.keys() >= set(chain.from_iterable(merges)):
        raise _merges_unknown(next(merge for merge in merges if not vocab.keys() >= set(merge)))
    tokenizer = {
        **_common_parts(vocabulary),
        "normalizer": rule.normalizer,
        "pre_tokenizer": rule.pre_tokenizer(prefix_space=prefix_space),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(vocab, merges, ignore_merges=rule.ignore_merges),
    }
    return tokenizer, rule.adds_bos


def _merges_unknown(merge: list[str]) -> CheckpointError:
    return CheckpointError(
        f"The GGUF file's tokenizer merges {' '.join(merge)!r}, which is not in its vocabulary. "
        "The file is damaged: fetch it again."
    )


def _split_rule_name(metadata: Mapping[str, Any]) -> str:
    name: str = _value(metadata, "tokenizer.ggml.pre", str, default="default")
    if name != "default":  # converters write "default" if they do not know the rule
        return name
    logger.warning(
        "the GGUF file does not specify how its tokenizer splits text (tokenizer.ggml.pre); using GPT-2's "
        "rule, which may be wrong: pass the directory of the original tokenizer with `tokenizer`"
    )
    return "gpt-2"


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> dict[str, Any]:
    scores = _list(metadata, "tokenizer.ggml.scores", float, int)
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"The GGUF file's tokenizer has {len(vocabulary.tokens)} tokens but {len(scores)} scores. "
            "The file is damaged: fetch it again."
        )
    to_spaces: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    normalizer = to_spaces
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if _value(metadata, "tokenizer.ggml.add_space_prefix", bool, default=True):
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, to_spaces]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _token(metadata, "unknown", vocabulary)
    if unknown is None:
        unknown = next((token for _, token in vocabulary.ids_of(_TokenType.UNKNOWN)), None)
    return {
        **_common_parts(vocabulary),
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            _vocab(vocabulary),
            _merges_from_scores(vocabulary, scores),
            unk_token=unknown,
            byte_fallback=_TokenType.BYTE in vocabulary.types,
        ),
    }


def _merges_from_scores(vocabulary: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Return a list of merges that is equivalent to the scores.

    SentencePiece joins the pair whose union has the best score; BPE joins the pair that is first in a list.
    User-defined pieces (such as runs of spaces) come before all learned ones, longest first. A run then grows
    from the left to the longest piece that fits, like the longest match of SentencePiece.
    """
    defined = {token for _, token in vocabulary.ids_of(_TokenType.USER_DEFINED)}
    score_of = {token: scores[token_id] for token_id, token in vocabulary.ids_of(_TokenType.NORMAL)}
    pieces = score_of.keys() | defined
    first = sorted(defined, key=lambda token: (-len(token), token))
    then = sorted(score_of, key=lambda token: -score_of[token])
    return [
        (left, right)
        for token in first + then
        for cut in range(len(token) - 1, 0, -1)
        if (left := token[:cut]) in pieces and (right := token[cut:]) in pieces
    ]


def _with_replaced_spaces(vocabulary: _Vocabulary) -> _Vocabulary:
    """Replace spaces in user-defined runs of spaces, as they are replaced in text before merging."""
    tokens = list(vocabulary.tokens)
    for token_id, token in vocabulary.ids_of(_TokenType.USER_DEFINED):
        if token and not token.strip(" "):
            tokens[token_id] = _SPACE * len(token)
    return _Vocabulary(tokens, vocabulary.types)


def _common_parts(vocabulary: _Vocabulary) -> dict[str, Any]:
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocabulary.types[token_id] != _TokenType.USER_DEFINED,
        }
        for token_id, token in vocabulary.ids_of(
            _TokenType.CONTROL, _TokenType.USER_DEFINED, _TokenType.UNKNOWN
        )
        if token
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
    }


def _bpe(
    vocab: dict[str, int],
    merges: Sequence[Sequence[str]],
    *,
    unk_token: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk_token is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = _list(metadata, "tokenizer.ggml.tokens", str)
    types = (
        _list(metadata, "tokenizer.ggml.token_type", int) if "tokenizer.ggml.token_type" in metadata else None
    )
    types = types if types is not None else [int(_TokenType.NORMAL)] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise CheckpointError(
            f"The GGUF file's tokenizer has {len(tokens)} tokens but {len(types)} token types. "
            "The file is damaged: fetch it again."
        )
    return _Vocabulary(tokens, types)


def _vocab(vocabulary: _Vocabulary) -> dict[str, int]:
    """Map tokens to ids, without unused tokens (padding to the model's width): these never occur in text."""
    unused = {token_id for token_id, _ in vocabulary.ids_of(_TokenType.UNUSED)}
    used = [(token, token_id) for token_id, token in enumerate(vocabulary.tokens) if token_id not in unused]
    vocab = dict(used)
    if len(vocab) < len(used):
        token, first = next((token, token_id) for token, token_id in used if vocab[token] != token_id)
        raise CheckpointError(
            f"The GGUF file's tokenizer lists {token!r} twice, as ids {first} and {vocab[token]}. "
            "Pass a tokenizer directory with `tokenizer`."
        )
    return vocab


def _end_ids(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[int, ...]:
    named = [_token_id(metadata, name, vocabulary) for name in ("eos", "eot", "eom")]
    usual = [token_id for token_id, token in vocabulary.ids_of(_TokenType.CONTROL) if token in _END_TOKENS]
    return tuple(dict.fromkeys([token_id for token_id in named if token_id is not None] + usual))


def _named_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template."
    return {
        key.removeprefix(prefix): _value(metadata, key, str) for key in metadata if key.startswith(prefix)
    }


def _token_id(metadata: Mapping[str, Any], name: str, vocabulary: _Vocabulary) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id: int | None = _value(metadata, key, int, default=None)
    if token_id is not None and not 0 <= token_id < len(vocabulary.tokens):
        raise CheckpointError(
            f"The GGUF file's {key} is {token_id}, but the vocabulary has {len(vocabulary.tokens)} tokens. "
            "The file is damaged: fetch it again."
        )
    return token_id


def _token(metadata: Mapping[str, Any], name: str, vocabulary: _Vocabulary) -> str | None:
    token_id = _token_id(metadata, name, vocabulary)
    return None if token_id is None else vocabulary.tokens[token_id]


_REQUIRED: Any = object()


def _value(metadata: Mapping[str, Any], key: str, kind: type[_Item], *, default: Any = _REQUIRED) -> Any:
    value = metadata.get(key, default)
    if value is _REQUIRED:
        raise CheckpointError(f"The GGUF file has no {key}. Pass a tokenizer directory with `tokenizer`.")
    if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise CheckpointError(
            f"The GGUF file's {key} should be {kind.__name__}, not {type(value).__name__}. "
            "The file is damaged: fetch it again."
        )
    return value


def _list(metadata: Mapping[str, Any], key: str, *kinds: type) -> list[Any]:
    value = _value(metadata, key, list)
    if not all(isinstance(item, kinds) for item in value):
        raise CheckpointError(f"The GGUF file's {key} has values of the wrong type. Fetch the file again.")
    return list(value)
