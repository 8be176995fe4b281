"""Small generated tokenizers of every kind. Most have gaps in their ids, like some real ones."""

import json
from collections.abc import Callable

import pytest
from tokenizers import pre_tokenizers

from data.json_types import Json, JsonObject
from octavo.text.assets import TextAssets
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# Merges that give tokens with halves of 漢 (E6 BC A2), 😀 (F0 9F 98 80) and é (C3 A9).
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ", "æ ¼", "æ¼ ¢", "ð Ł", "Ł ĺ", "Ã ©", "1 2"]


@pytest.fixture
def byte_level_metadata() -> JsonObject:
    merged = [merge.replace(" ", "") for merge in MERGES]
    special = ["<|start|>", "<|im_end|>", "<think>", "[PAD1]"]
    tokens = ALPHABET + merged + special
    types = [NORMAL] * (len(ALPHABET) + len(merged)) + [CONTROL, CONTROL, USER_DEFINED, UNUSED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": tokens.index("<|start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def sentencepiece(
    pieces: dict[str, float], *, space_prefix: bool, defined: tuple[str, ...] = ()
) -> JsonObject:
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "[PAD0]"]
    tokens = [*fixed, *defined, *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len([*fixed, *defined]) + list(pieces.values()),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [UNUSED]  # a gap in the ids
        + [USER_DEFINED] * len(defined)
        + [NORMAL] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


@pytest.fixture
def sentencepiece_metadata() -> Callable[..., JsonObject]:
    return sentencepiece


PIECES = {piece: -float(rank) for rank, piece in enumerate(["▁t", "he", "▁the", "▁a", "▁", *"thea漢é."])}


def library_tokenizer(model: JsonObject, decoder: JsonObject | None, **parts: Json) -> TextAssets:
    empty: JsonObject = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    whole = {
        **empty,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
        **parts,
    }
    return TextAssets(tokenizer_json=json.dumps(whole))


def wordpiece_assets() -> TextAssets:
    words = ["[UNK]", "hello", "##ing", "##s", "don", "'", "t", ".", ",", "é", "n", "##'", "not", "do"]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {word: 2 * i for i, word in enumerate(words)},
    }
    return library_tokenizer(model, {"type": "WordPiece", "prefix": "##", "cleanup": True})


def metaspace_assets() -> TextAssets:
    model: JsonObject = {
        "type": "BPE",
        "unk_token": None,
        "vocab": {t: i for i, t in enumerate(PIECES)},
        "merges": [],
    }
    return library_tokenizer(
        model, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    )


def undecoded_assets() -> TextAssets:
    return library_tokenizer(
        {"type": "WordLevel", "unk_token": "x", "vocab": {"x": 0, "é": 1, "b c": 9}}, None
    )


@pytest.fixture(
    params=["byte-level", "space prefix", "no space prefix", "wordpiece", "metaspace", "no decoder"]
)
def tokenizer(request: pytest.FixtureRequest, byte_level_metadata: JsonObject) -> Tokenizer:
    assets: dict[str, Callable[[], TextAssets]] = {
        "byte-level": lambda: text_assets_from_gguf(byte_level_metadata),
        "space prefix": lambda: text_assets_from_gguf(sentencepiece(PIECES, space_prefix=True)),
        "no space prefix": lambda: text_assets_from_gguf(
            sentencepiece(PIECES, space_prefix=False, defined=("\n", "\n\n", "  ", "   "))
        ),
        "wordpiece": wordpiece_assets,
        "metaspace": metaspace_assets,
        "no decoder": undecoded_assets,
    }
    return Tokenizer(assets[request.param]())
