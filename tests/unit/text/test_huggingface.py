import contextlib
import json
from pathlib import Path

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.errors import CheckpointError, RequestError
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path, byte_level_metadata: JsonObject) -> Path:
    """tokenizer.json lists <|start|> and <|im_end|> as special, <think> as added."""
    (tmp_path / "tokenizer.json").write_text(text_assets_from_gguf(byte_level_metadata).tokenizer_json)
    return tmp_path


def write(file: Path, value: Json) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_tokenizer_file_alone_is_sufficient(folder: Path) -> None:
    assets = text_assets_from_directory(folder)
    assert (assets.bos_token, assets.eos_ids, assets.chat_template, assets.add_bos) == (None, (), None, None)
    assert Tokenizer(assets).decode(Tokenizer(assets).encode("hello")) == "hello"


def test_tokens_may_be_strings_or_objects_and_the_config_takes_precedence(folder: Path) -> None:
    write(
        folder / "special_tokens_map.json",
        {"bos_token": "no", "unk_token": {"content": "h"}, "pad_token": "e"},
    )
    write(
        folder / "tokenizer_config.json", {"bos_token": {"content": "<|start|>"}, "eos_token": "<|im_end|>"}
    )
    assets = text_assets_from_directory(folder)
    tokens = (assets.bos_token, assets.eos_token, assets.unk_token, assets.pad_token)
    assert tokens == ("<|start|>", "<|im_end|>", "h", "e")


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        (None, None, ["<|im_end|>"]),
        (7, 9, [7, "<|im_end|>"]),
        ([8, 7], None, [8, 7, "<|im_end|>"]),
        (None, [9], [9, "<|im_end|>"]),
    ],
)
def test_all_eos_tokens_are_found_in_order(
    folder: Path, generation: Json, model: Json, expected: list[Json]
) -> None:
    write(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    write(folder / "generation_config.json", {} if generation is None else {"eos_token_id": generation})
    write(folder / "config.json", {} if model is None else {"eos_token_id": model})
    assets = text_assets_from_directory(folder)
    end = Tokenizer(assets).token_id("<|im_end|>")
    assert assets.eos_ids == tuple(end if token == "<|im_end|>" else token for token in expected)


def test_tokens_listed_only_in_the_config_are_added(folder: Path) -> None:
    size = Tokenizer(text_assets_from_directory(folder)).vocab_size
    listed = {str(size): {"content": "<new>", "special": True}, str(size + 1): {"content": "<plain>"}}
    write(folder / "tokenizer_config.json", {"added_tokens_decoder": listed})
    tokenizer = Tokenizer(text_assets_from_directory(folder))
    assert tokenizer.encode("<new><plain>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<plain>"


def test_a_token_with_a_role_is_special(folder: Path) -> None:
    config = {
        "eos_token": "<think>",
        "additional_special_tokens": ["hello"],
        "extra_special_tokens": {"x": "12"},
    }
    write(folder / "tokenizer_config.json", config)
    tokenizer = Tokenizer(text_assets_from_directory(folder))
    assert tokenizer.decode(tokenizer.encode("<think>hello12 a")) == " a"


@pytest.mark.parametrize("add_bos", ["absent", None, True, False])
@pytest.mark.parametrize("add_eos", ["absent", None, True, False])
def test_bos_and_eos_flags_behave_as_in_transformers(
    folder: Path, add_bos: bool | str | None, add_eos: bool | str | None
) -> None:
    """The flags have no effect: the post-processor decides."""
    flags = {"add_bos_token": add_bos, "add_eos_token": add_eos}
    config: dict[str, bool | str | None] = {
        "bos_token": "<|start|>",
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    config |= {name: value for name, value in flags.items() if value != "absent"}
    write(folder / "tokenizer_config.json", config)
    plain = json.loads((folder / "tokenizer.json").read_text())
    for post_processor in (None, adding_start(plain)):
        write(folder / "tokenizer.json", plain | {"post_processor": post_processor})
        ours = Tokenizer(text_assets_from_directory(folder))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert ours.encode("hello 12") == theirs("hello 12")["input_ids"]


def adding_start(tokenizer: JsonObject) -> JsonObject:
    start = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|start|>")
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "S", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"S": {"id": "S", "ids": [start], "tokens": ["<|start|>"]}},
    }


def test_templates_are_found_in_every_location(folder: Path) -> None:
    def found() -> tuple[str | None, dict[str, str]]:
        assets = text_assets_from_directory(folder)
        return assets.chat_template, assets.named_templates

    write(folder / "tokenizer_config.json", {"chat_template": "config"})
    assert found() == ("config", {})
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    write(folder / "tokenizer_config.json", {"chat_template": named})
    assert found() == ("one", {"tool_use": "two"})
    write(folder / "chat_template.json", {"chat_template": "json"})
    assert found() == ("json", {})
    write(folder / "chat_template.jinja", "jinja")
    write(folder / "additional_chat_templates" / "rag.jinja", "more")
    assert found() == ("jinja", {"rag": "more"})


def test_a_missing_tokenizer_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*`tokenizer`"):
        text_assets_from_directory(tmp_path)


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**6) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CONFIG_KEYS = ["bos_token", "eos_token", "added_tokens_decoder", "additional_special_tokens", "chat_template"]
KEYS = {
    "tokenizer_config.json": [*CONFIG_KEYS, "add_bos_token", "extra_special_tokens"],
    "special_tokens_map.json": ["bos_token", "mask_token"],
    "generation_config.json": ["eos_token_id"],
    "config.json": ["eos_token_id"],
    "chat_template.json": ["chat_template"],
    "tokenizer.json": ["model", "added_tokens", "decoder", "normalizer", "pre_tokenizer"],
}


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), value=any_json, broken=st.sampled_from(["value", "file", "text"]))
def test_damaged_files_are_rejected_or_work(
    folder: Path, data: st.DataObject, value: Json, broken: str
) -> None:
    name = data.draw(st.sampled_from(sorted(KEYS)))
    file = folder / name
    original = file.read_text() if file.exists() else None
    try:
        if broken == "value":
            whole = json.loads(original) if original else {}
            write(file, {**whole, data.draw(st.sampled_from(KEYS[name])): value})
        elif broken == "file":
            write(file, json.dumps(value))
        else:
            file.write_bytes(data.draw(st.binary(max_size=8)))
        try:
            tokenizer = Tokenizer(text_assets_from_directory(folder))
        except CheckpointError:
            return
        with contextlib.suppress(RequestError):  # damage that shows on some texts only
            tokenizer.decode(tokenizer.encode("hello é"))
    finally:
        file.unlink()
        if original is not None:
            file.write_text(original)


class PanicException(BaseException):  # the name of the library's panics
    """The library panics on some damaged files: version 0.23.3 on a normalizer that prepends nothing."""


def test_a_panic_of_the_library_rejects_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic is a BaseException: unhandled, it would end the thread that encodes."""

    class Panicking:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise PanicException

    tokenizer = Tokenizer(text_assets_from_directory(folder))
    monkeypatch.setattr(tokenizer, "_backend", Panicking())
    with pytest.raises(RequestError, match="tokenizer failed on this text"):
        tokenizer.encode("hello é")
