import itertools
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import JsonObject
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer

shared_fixtures = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def in_pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    borders = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(borders)]


def bytes_of(tokenizer: Tokenizer, ids: list[int], skip: bool) -> bytes:
    shown = [i for i in ids if tokenizer.is_shown(i, skip_special_tokens=skip)]
    return b"".join(tokenizer.token_bytes(i, first=n == 0) for n, i in enumerate(shown))


def unfinished(data: bytes) -> int:
    """Return the number of bytes at the end that form an incomplete character."""
    if data[-2:-1] == b"\xed" and 0xA0 <= data[-1] <= 0xBF:
        return 2  # half a surrogate cannot become valid, but Python's decoder waits for its last byte
    for length in (3, 2, 1):
        tail = data[-length:] if len(data) >= length else b"\xff"
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return length
    return 0


@shared_fixtures
@given(data=st.data(), skip=st.booleans())
def test_incremental_decoding_equals_decoding_at_once(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    """For any prompt, ids and split: equals decoding everything, minus the prompt's complete characters."""
    some_ids = st.lists(st.integers(0, max(tokenizer._backend.get_vocab().values()) + 3), max_size=12)
    prompt, ids, cuts = data.draw(some_ids), data.draw(some_ids), data.draw(st.lists(st.integers(0, 99)))
    prompt_bytes = bytes_of(tokenizer, prompt, skip)
    whole_characters = prompt_bytes[: len(prompt_bytes) - unfinished(prompt_bytes)]
    expected = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    expected = expected.removeprefix(whole_characters.decode(errors="replace"))

    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, prompt_ids=prompt)
    shown, pushed = "", list(prompt)
    for piece in in_pieces(ids, cuts):
        shown += detokenizer.push(piece)
        pushed += piece
        assert expected.startswith(shown)  # so U+FFFD occurs only where the complete text has it
        held = unfinished(bytes_of(tokenizer, pushed, skip))
        bytes_shown = bytes_of(tokenizer, pushed, skip)[len(whole_characters) :]
        assert shown == bytes_shown[: len(bytes_shown) - held].decode(
            errors="replace"
        )  # no more is held back
    assert shown + detokenizer.finish() == expected


@shared_fixtures
@given(text=st.text(alphabet=st.sampled_from("the a漢😀é. \n🇨"), max_size=20))
def test_valid_text_has_no_replacement_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.finish()]
    assert "".join(shown) == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(shown)


def test_the_first_word_keeps_its_space_after_a_prompt(
    sentencepiece_metadata: Callable[..., JsonObject],
) -> None:
    pieces = {"▁a": -1.0, "▁": -2.0, "a": -3.0}
    tokenizer = Tokenizer(text_assets_from_gguf(sentencepiece_metadata(pieces, space_prefix=True)))
    ids = tokenizer.encode("a a", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer).push(ids) == "a a"
    assert IncrementalDetokenizer(tokenizer, prompt_ids=[1]).push(ids) == "a a"  # a hidden BOS has no text
    assert IncrementalDetokenizer(tokenizer, prompt_ids=[1, *ids]).push(ids) == " a a"


def test_each_token_is_decoded_once(byte_level_metadata: JsonObject) -> None:
    tokenizer = Tokenizer(text_assets_from_gguf(byte_level_metadata))
    looked_at: list[int] = []
    original = tokenizer.token_bytes
    tokenizer.token_bytes = lambda i, first=False: looked_at.append(i) or original(i, first=first)  # type: ignore[method-assign,misc,func-returns-value]
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids=tokenizer.encode("hello " * 500))
    assert len(looked_at) <= 3
    looked_at.clear()
    ids = tokenizer.encode("漢é hello " * 300, add_special_tokens=False)
    for token_id in ids:
        detokenizer.push([token_id])
    assert looked_at == ids


@pytest.mark.assets
@pytest.mark.parametrize("name", ["tokenizer-gemma3", "tokenizer-llama3.2"])
def test_real_tokenizers_stream_the_corpus(name: str, assets: Callable[[str], Path]) -> None:
    lines = runpy.run_path(str(Path(__file__).parents[2] / "data/multilingual.py"))["corpus_lines"]()
    tokenizer = Tokenizer(text_assets_from_directory(assets(name)))
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        detokenizer = IncrementalDetokenizer(tokenizer)
        shown = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.finish()
        assert shown == tokenizer._backend.decode(ids)
        assert ("\ufffd" in shown) == ("\ufffd" in line)
