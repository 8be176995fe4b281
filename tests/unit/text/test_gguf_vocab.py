import itertools
import json
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.errors import CheckpointError
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.split_rules import split_rule
from octavo.text.tokenizer import Tokenizer

Metadata = JsonObject
NORMAL = 1
shared_fixtures = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def best_scores_first(text: str, pieces: dict[str, float]) -> list[str]:
    """SentencePiece by definition: merge the neighbours whose union has the best score, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [
            (pieces[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in pieces
        ]
        if not unions:
            return symbols
        place = -max(unions)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


@shared_fixtures
@given(data=st.data(), text=st.text("abcd ", max_size=12))
def test_scores_become_merges_that_give_the_same_pieces(
    sentencepiece_metadata: Callable[..., Metadata], data: st.DataObject, text: str
) -> None:
    """For any scores. No piece overlaps itself, since a merge list cannot express "leftmost" there."""
    parts = ["▁abcd"[i:j] for i in range(5) for j in range(i + 1, 6)]
    scores = data.draw(st.permutations(range(len(parts))))
    pieces = {part: -float(score) for part, score in zip(parts, scores, strict=True)}
    metadata = sentencepiece_metadata(pieces, space_prefix=True)
    tokenizer = Tokenizer(text_assets_from_gguf(metadata))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [metadata["tokenizer.ggml.tokens"][i] for i in ids] == best_scores_first(text, pieces)


def test_unknown_characters_fall_back_to_bytes(sentencepiece_metadata: Callable[..., Metadata]) -> None:
    metadata = sentencepiece_metadata({"▁": -1.0, "a": -2.0}, space_prefix=False)
    tokenizer = Tokenizer(text_assets_from_gguf(metadata))
    ids = tokenizer.encode("a é")
    tokens = [metadata["tokenizer.ggml.tokens"][i] for i in ids]
    assert tokens == ["<s>", "a", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a é"


def test_runs_of_spaces_use_the_longest_user_defined_piece(
    sentencepiece_metadata: Callable[..., Metadata],
) -> None:
    defined = tuple(" " * n for n in range(2, 6))
    metadata = sentencepiece_metadata({"▁": -1.0, "▁x": 0.0, "x": -2.0}, space_prefix=False, defined=defined)
    tokenizer = Tokenizer(text_assets_from_gguf(metadata))
    lengths = [
        len(tokenizer.token_text(i)) for i in tokenizer.encode(" " * 12 + "x", add_special_tokens=False)
    ]
    assert lengths == [5, 5, 2, 1]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'LL go  12345", ["I", "'", "LL", " go", " ", " 12345"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("llama-bpe", "I'LL go  12345", ["I", "'LL", " go", " ", " ", "123", "45"]),
        ("qwen2", "go  123\n\n x", ["go", " ", " ", "1", "2", "3", "\n\n", " x"]),
        ("tekken", "camelCase 12//\n", ["camel", "Case", " ", "1", "2", "//\n"]),
    ],
)
def test_pre_tokenizer_rules_split_text_as_expected(pre: str, text: str, pieces: list[str]) -> None:
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole = json.loads(empty.to_str()) | {"pre_tokenizer": split_rule(pre).pre_tokenizer(prefix_space=False)}
    cut = tokenizers.Tokenizer.from_str(json.dumps(whole)).pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


def test_an_unknown_pre_tokenizer_is_rejected_with_the_known_ones(byte_level_metadata: Metadata) -> None:
    byte_level_metadata["tokenizer.ggml.pre"] = "never-heard-of"
    with pytest.raises(CheckpointError, match=r"never-heard-of.*llama-bpe.*qwen2"):
        text_assets_from_gguf(byte_level_metadata)


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_missing_pre_tokenizer_causes_a_warning(
    byte_level_metadata: Metadata, pre: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    by_name = text_assets_from_gguf(byte_level_metadata | {"tokenizer.ggml.pre": "gpt-2"})
    assert caplog.messages == []
    del byte_level_metadata["tokenizer.ggml.pre"]
    unnamed = byte_level_metadata if pre is None else byte_level_metadata | {"tokenizer.ggml.pre": pre}
    assert text_assets_from_gguf(unnamed) == by_name
    (message,) = caplog.messages
    assert "GPT-2's rule" in message
    assert "`tokenizer`" in message


def test_special_tokens_by_type(byte_level_metadata: Metadata) -> None:
    assets = text_assets_from_gguf(byte_level_metadata)
    assert (assets.bos_token, assets.eos_token, assets.unk_token) == ("<|start|>", "<|im_end|>", None)
    assert (assets.add_bos, assets.add_eos) == (True, False)
    tokenizer = Tokenizer(assets)
    tokens = byte_level_metadata["tokenizer.ggml.tokens"]
    assert tokenizer.encode("<think>", add_special_tokens=False) == [tokens.index("<think>")]
    assert len(tokenizer.encode("[PAD1]", add_special_tokens=False)) == 6  # unused: never produced from text
    assert tokenizer.token_text(tokens.index("[PAD1]")) == ""


def test_every_end_of_turn_token_is_an_eos(byte_level_metadata: Metadata) -> None:
    tokens: list[str] = byte_level_metadata["tokenizer.ggml.tokens"]
    byte_level_metadata["tokenizer.ggml.eos_token_id"] = 5
    byte_level_metadata["tokenizer.ggml.eot_token_id"] = 7
    assert text_assets_from_gguf(byte_level_metadata).eos_ids == (5, 7, tokens.index("<|im_end|>"))


@pytest.mark.parametrize(
    ("kind", "pre", "expected"),
    [("gpt2", "gpt-2", False), ("gpt2", "llama-bpe", True), ("llama", "default", True)],
)
def test_default_of_add_bos(
    kind: str,
    pre: str,
    expected: bool,
    byte_level_metadata: Metadata,
    sentencepiece_metadata: Callable[..., Metadata],
) -> None:
    metadata = (
        byte_level_metadata if kind == "gpt2" else sentencepiece_metadata({"a": 0.0}, space_prefix=True)
    )
    metadata.pop("tokenizer.ggml.add_bos_token", None)
    metadata["tokenizer.ggml.pre"] = pre
    assert text_assets_from_gguf(metadata).add_bos is expected


def test_named_templates(byte_level_metadata: Metadata) -> None:
    byte_level_metadata["tokenizer.chat_template.tool_use"] = "tools!"
    assets = text_assets_from_gguf(byte_level_metadata)
    assert assets.chat_template is not None
    assert assets.named_templates == {"tool_use": "tools!"}


any_value = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@shared_fixtures
@given(data=st.data(), value=any_value, byte_level=st.booleans())
def test_a_damaged_file_is_rejected_or_works(
    byte_level_metadata: Metadata,
    sentencepiece_metadata: Callable[..., Metadata],
    data: st.DataObject,
    value: Json,
    byte_level: bool,
) -> None:
    metadata = (
        byte_level_metadata
        if byte_level
        else sentencepiece_metadata({"a": -1.0, "b": -2.0}, space_prefix=True)
    )
    metadata = dict(metadata)
    key = data.draw(st.sampled_from(sorted(metadata)))
    if data.draw(st.booleans()):
        del metadata[key]
    elif isinstance(metadata[key], list) and data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(metadata[key]) - 1))
        metadata[key] = [*metadata[key][:index], value, *metadata[key][index + 1 :]]
    else:
        metadata[key] = value
    try:
        tokenizer = Tokenizer(text_assets_from_gguf(metadata))
    except CheckpointError:
        return
    tokenizer.decode(tokenizer.encode("hello ab é"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "wordlevel"}, "kind 'wordlevel'"),
        ({"merges": ["h e", "q z"]}, "merges 'q z'"),
        ({"tokens": ["a", "b", "a"], "token_type": [NORMAL] * 3}, "'a' twice, as ids 0 and 2"),
        ({"tokens": ["a"]}, "1 tokens but 272 token types"),
        ({"bos_token_id": 5000}, "bos_token_id is 5000"),
        ({"eos_token_id": True}, "should be int, not bool"),
        ({"model": "llama", "scores": [0.0]}, "but 1 scores"),
    ],
)
def test_damaged_metadata_is_explained(
    byte_level_metadata: Metadata, changes: Metadata, message: str
) -> None:
    changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        text_assets_from_gguf(byte_level_metadata | changed)
