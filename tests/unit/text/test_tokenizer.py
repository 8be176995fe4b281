import json
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import JsonObject
from octavo.errors import CheckpointError, RequestError
from octavo.text.assets import TextAssets
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.tokenizer import Tokenizer

shared_fixtures = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@shared_fixtures
@given(data=st.data())
def test_decode_matches_the_library_for_whole_characters(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """For arbitrary ids. For bytes that are not valid characters, see the docstring of `Tokenizer`."""
    largest = max(tokenizer._backend.get_vocab().values())
    ids = data.draw(st.lists(st.integers(0, largest + 3), max_size=12))
    for skip in (False, True):
        ours = tokenizer.decode(ids, skip_special_tokens=skip)
        theirs = tokenizer._backend.decode(ids, skip_special_tokens=skip)
        if "\ufffd" not in theirs:
            assert ours == theirs


@shared_fixtures
@given(ids=st.lists(st.integers(0, 274), max_size=12))
def test_byte_level_decode_matches_the_library_for_any_ids(
    byte_level_metadata: JsonObject, ids: list[int]
) -> None:
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@shared_fixtures
@given(text=st.text(max_size=30))
def test_text_round_trips(byte_level_metadata: JsonObject, text: str) -> None:
    byte_level_metadata["tokenizer.ggml.pre"] = "gpt-2"  # without Qwen's normalisation
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids[1:])).decode() == text


def test_bos_is_not_added_twice(byte_level_metadata: JsonObject) -> None:
    by_flag = text_assets_from_gguf(byte_level_metadata)
    whole = json.loads(by_flag.tokenizer_json)
    bos = byte_level_metadata["tokenizer.ggml.bos_token_id"]
    whole["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"B": {"id": "B", "ids": [bos], "tokens": ["<|start|>"]}},
    }
    by_library = replace(by_flag, tokenizer_json=json.dumps(whole), add_bos=None, add_eos=None)
    for assets in (by_flag, by_library):
        tokenizer = Tokenizer(assets)
        hello = tokenizer.encode("hello", add_special_tokens=False)
        assert tokenizer.encode("hello") == [bos, *hello]
        assert tokenizer.encode("<|start|>hello") == [bos, *hello]
        assert tokenizer.encode("<|start|><|start|>hello") == [bos, bos, *hello]
        assert tokenizer.encode("") == [bos]


def test_bos_tokens_in_the_text_are_kept_when_none_is_added(byte_level_metadata: JsonObject) -> None:
    byte_level_metadata["tokenizer.ggml.add_bos_token"] = False
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    assert tokenizer.encode("<|start|><|start|>") == [tokenizer.bos_id] * 2


def test_eos_is_added_when_the_checkpoint_requires_it(byte_level_metadata: JsonObject) -> None:
    byte_level_metadata["tokenizer.ggml.add_eos_token"] = True
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    assert tokenizer.encode("hello")[-1] == tokenizer.eos_ids[0]
    assert tokenizer.eos_ids[0] not in tokenizer.encode("hello", add_special_tokens=False)


def test_prompts_are_neither_truncated_nor_padded(byte_level_metadata: JsonObject) -> None:
    assets = text_assets_from_gguf(byte_level_metadata)
    backend = tokenizers.Tokenizer.from_str(assets.tokenizer_json)
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    tokenizer = Tokenizer(replace(assets, tokenizer_json=backend.to_str()))
    assert tokenizer.encode_batch(["hello" * 9, ""]) == [tokenizer.encode("hello" * 9), [tokenizer.bos_id]]
    assert len(tokenizer.encode("hello" * 9)) == 10


def test_special_tokens_are_hidden_and_user_defined_ones_are_not(byte_level_metadata: JsonObject) -> None:
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    ids = tokenizer.encode("a<think>b<|im_end|>")
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>a<think>b<|im_end|>"
    assert tokenizer.special_ids == {tokenizer.token_id("<|start|>"), tokenizer.token_id("<|im_end|>")}


def test_every_token_is_below_the_vocabulary_size(tokenizer: Tokenizer) -> None:
    """Ids may have gaps, so that the largest id can exceed the number of tokens."""
    assert tokenizer.vocab_size == max(tokenizer._backend.get_vocab().values()) + 1


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_give_no_text(tokenizer: Tokenizer, token_id: int) -> None:
    assert tokenizer.decode([0, token_id, 0]) == tokenizer.decode([0, 0])
    assert tokenizer.token_bytes(token_id) == b""


def test_an_incomplete_character_is_shown_as_u_fffd(byte_level_metadata: JsonObject) -> None:
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    half = tokenizer.token_id("ðŁ")
    assert half is not None
    assert (tokenizer.token_bytes(half), tokenizer.token_text(half)) == (b"\xf0\x9f", "\ufffd")


def test_a_lone_surrogate_is_rejected(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize(
    "broken", ["", "{}", "[1]", '{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}']
)
def test_an_invalid_tokenizer_is_rejected(broken: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(TextAssets(tokenizer_json=broken))


def test_a_missing_bos_is_rejected(byte_level_metadata: JsonObject) -> None:
    assets = replace(text_assets_from_gguf(byte_level_metadata), bos_token="<absent>")
    with pytest.raises(CheckpointError, match="BOS"):
        Tokenizer(assets)


def test_an_unknown_decoder_is_rejected(byte_level_metadata: JsonObject) -> None:
    assets = text_assets_from_gguf(byte_level_metadata)
    whole = {**json.loads(assets.tokenizer_json), "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}
    with pytest.raises(CheckpointError, match="BPEDecoder"):
        Tokenizer(replace(assets, tokenizer_json=json.dumps(whole)))
