"""`suffix` of completions, for models that can fill in the middle."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from data.json_types import Json
from octavo.text.fill_in_middle import FillInMiddle
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from server.process import StartServer
from server.scripted import FACTS, ScriptedServer, scripted_server

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"


@pytest.fixture(scope="module")
def tokenizer(assets: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer(text_assets_from_directory(assets("tokenizer-qwen2.5")))


@pytest.fixture(scope="module")
def fill(tokenizer: Tokenizer) -> FillInMiddle:
    found = FillInMiddle.of_tokenizer(tokenizer)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def coder(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen2.5")) as server:
        yield server


def complete(server: ScriptedServer, prompt: Json = PREFIX, **fields: Json) -> Json:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        return client.completions.create(model="scripted", prompt=prompt, **fields)


def test_the_prompt_is_prefix_suffix_middle(
    coder: ScriptedServer, tokenizer: Tokenizer, fill: FillInMiddle
) -> None:
    coder.says("a + b")
    answer = complete(coder, suffix=SUFFIX, extra_body={"octavo": {"prompt": True}})
    prepared = coder.prepared[-1]
    expected = fill.prompt_ids(tokenizer, PREFIX, SUFFIX, add_special_tokens=True)
    assert list(prepared.prompt_ids) == expected
    assert set(fill.stop_ids) <= set(prepared.messages[0].stop_ids)
    assert answer.choices[0].text == "a + b"
    assert answer.usage.prompt_tokens == len(expected)
    shown = answer.octavo["requests"][0]["prompt"]
    assert shown == f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"


def test_each_prompt_of_a_list_has_the_suffix(
    coder: ScriptedServer, tokenizer: Tokenizer, fill: FillInMiddle
) -> None:
    coder.says("1", "2")
    prompts = ["x = ", "y = "]
    answer = complete(coder, prompts, suffix=SUFFIX)
    assert [choice.text for choice in answer.choices] == ["1", "2"]
    ids = [fill.prompt_ids(tokenizer, text, SUFFIX, add_special_tokens=True) for text in prompts]
    assert [list(one.prompt_ids) for one in coder.prepared[-2:]] == ids


def test_an_empty_suffix_is_none(coder: ScriptedServer) -> None:
    coder.says("1", "1", "1")
    for fields in ({}, {"suffix": ""}, {"extra_body": {"suffix": None}}):
        complete(coder, **fields)
    first, *others = [one.messages[0] for one in coder.prepared[-3:]]
    assert first.stop_ids == others[0].stop_ids == others[1].stop_ids
    assert first.prompt_ids == others[0].prompt_ids == others[1].prompt_ids


def test_own_stop_tokens_remain_and_ignore_eos_ignores_all(coder: ScriptedServer, fill: FillInMiddle) -> None:
    coder.says("1", "1")
    complete(coder, suffix=SUFFIX, extra_body={"stop_token_ids": [5]})
    assert {5, *fill.stop_ids} <= set(coder.prepared[-1].messages[0].stop_ids)
    complete(coder, suffix=SUFFIX, extra_body={"stop_token_ids": [5], "ignore_eos": True})
    assert coder.prepared[-1].messages[0].stop_ids == (5,)


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [(PREFIX, {"echo": True}, "echo"), ([1, 2], {}, "suffix"), ([[1], [2]], {}, "suffix")],
)
def test_what_cannot_be_combined(coder: ScriptedServer, prompt: Json, fields: Json, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(coder, prompt, suffix=SUFFIX, **fields)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_a_prompt_that_is_too_long_with_its_suffix(coder: ScriptedServer) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is") as caught:
        complete(coder, suffix=" a" * FACTS.max_model_len)
    assert caught.value.code == "context_length_exceeded"


def test_models_without_the_tokens_reject_it(assets: Callable[[str], Path]) -> None:
    with scripted_server(assets("tokenizer-gemma3")) as server:
        with pytest.raises(openai.BadRequestError, match="no tokens to fill in the middle") as caught:
            complete(server, suffix=SUFFIX)
        assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")


def test_a_real_model_fills_in_the_middle(start: StartServer, assets: Callable[[str], Path]) -> None:
    model = assets("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
    server = start("--max-model-len", "256", "--kv-memory", "64MiB", model=model).wait_until_ready()
    gaps = {
        "json": ("import ", "\n\nprint(json.dumps({}))\n"),
        "sum": ("numbers = [1, 2, 3]\ntotal = ", "(numbers)\nprint(total)  # 6\n"),
    }
    for word, (prefix, suffix) in gaps.items():
        body = {"prompt": prefix, "temperature": 0, "max_tokens": 4}
        filled = server.post("/v1/completions", body | {"suffix": suffix}).json()["choices"][0]["text"]
        assert filled.startswith(word)
        assert not server.post("/v1/completions", body).json()["choices"][0]["text"].startswith(word)
