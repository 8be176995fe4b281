"""Prompts with a gap, for tokenizers of every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import JsonObject
from octavo.text.fill_in_middle import FAMILIES, FillInMiddle, Markers
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from unit.text.conftest import CONTROL, sentencepiece

TEXTS = st.text(st.sampled_from("ab 12\n\té漢😀<|>_") | st.characters(exclude_categories=["Cs"]), max_size=20)


def with_tokens(metadata: JsonObject, *tokens: str) -> Tokenizer:
    changed = metadata | {
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], *tokens],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], *[CONTROL] * len(tokens)],
    }
    if "tokenizer.ggml.scores" in metadata:
        changed["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], *[0.0] * len(tokens)]
    return Tokenizer(text_assets_from_gguf(changed))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_every_family_is_found(family: Markers, byte_level_metadata: JsonObject) -> None:
    # In another order than in a prompt, so that no order of ids is assumed.
    tokenizer = with_tokens(byte_level_metadata, family.middle, *family.stops, family.suffix, family.prefix)
    fill = FillInMiddle.of_tokenizer(tokenizer)
    assert fill is not None
    texts = [tokenizer.token_text(i) for i in (fill.prefix_id, fill.suffix_id, fill.middle_id)]
    assert texts == [family.prefix, family.suffix, family.middle]
    stops = {tokenizer.token_text(i) for i in fill.stop_ids}
    assert stops == {*family.stops, *texts}


def test_models_without_all_three_tokens_have_none(byte_level_metadata: JsonObject) -> None:
    assert FillInMiddle.of_tokenizer(with_tokens(byte_level_metadata)) is None
    two = with_tokens(byte_level_metadata, "<fim_prefix>", "<fim_suffix>")
    assert FillInMiddle.of_tokenizer(two) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(prefix=TEXTS, suffix=TEXTS)
def test_prefix_suffix_and_middle_are_in_this_order(
    byte_level_metadata: JsonObject, prefix: str, suffix: str
) -> None:
    """Each part has the ids that it has on its own, so no text can join two parts."""
    tokenizer = with_tokens(byte_level_metadata, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    fill = FillInMiddle.of_tokenizer(tokenizer)
    assert fill is not None
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    ids = [fill.prefix_id, *before, fill.suffix_id, *after, fill.middle_id]
    assert fill.prompt_ids(tokenizer, prefix, suffix, add_special_tokens=False) == ids
    assert fill.prompt_ids(tokenizer, prefix, suffix, add_special_tokens=True) == [tokenizer.bos_id, *ids]


@pytest.mark.parametrize("suffix", ["b", " b", "  b", "\n", "bb\n b", ""])
def test_code_llama_gets_no_space_before_the_suffix(suffix: str) -> None:
    pieces = {"▁": -1.0, "a": -2.0, "b": -3.0, "▁a": -0.5, "▁b": -0.6, "bb": -0.7, "☺": -4.0}
    tokenizer = with_tokens(sentencepiece(pieces, space_prefix=True), "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    fill = FillInMiddle.of_tokenizer(tokenizer)
    assert fill is not None
    assert [tokenizer.token_text(i) for i in fill.stop_ids][-1].strip() == "<EOT>"
    ids = fill.prompt_ids(tokenizer, "a", suffix, add_special_tokens=False)
    assert ids[:3] == [fill.prefix_id, *tokenizer.encode("a", add_special_tokens=False), fill.suffix_id]
    assert ids[-1] == fill.middle_id
    assert b"".join(tokenizer.token_bytes(i) for i in ids[3:-1]).decode() == suffix


@pytest.mark.assets
def test_the_prompt_of_qwen_coder(assets: Callable[[str], Path]) -> None:
    """In its documentation, the prompt is `<|fim_prefix|>...<|fim_suffix|>...<|fim_middle|>`."""
    tokenizer = Tokenizer(text_assets_from_directory(assets("tokenizer-qwen2.5")))
    fill = FillInMiddle.of_tokenizer(tokenizer)
    assert fill is not None
    prefix, suffix = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
    ids = fill.prompt_ids(tokenizer, prefix, suffix, add_special_tokens=True)
    assert (ids[0], ids[-1]) == (151659, 151660)
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
    )
    ends = [tokenizer.token_text(i) for i in fill.stop_ids]
    assert {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>"} <= set(ends)
