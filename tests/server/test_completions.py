"""Completions, requested with OpenAI's client and in the form that evaluation harnesses use."""

import math

import pytest

from data.json_types import Json
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")


def complete(server: Server, prompt: Json = "abc", **fields: Json) -> Json:
    extra = fields.pop("extra", None)
    fields = {"model": "tiny", "prompt": prompt, "seed": 7, "max_tokens": 8, "temperature": 0} | fields
    return server.client().completions.create(**fields, extra_body=extra)


def test_every_response_field(server: Server) -> None:
    answer = complete(server)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", "tiny")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        3,
        8,
        11,
    )


def test_max_tokens_defaults_to_16(server: Server) -> None:
    assert complete(server, max_tokens=None).usage.completion_tokens == 16


def test_all_four_kinds_of_prompt(server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": "abc"}).json()["tokens"]
    alone = complete(server).choices[0].text
    other = complete(server, "xyz").choices[0].text
    assert complete(server, ids).choices[0].text == alone
    for prompts in (["abc", "xyz"], [ids, server.post("/tokenize", {"prompt": "xyz"}).json()["tokens"]]):
        answer = complete(server, prompts)
        assert [choice.text for choice in answer.choices] == [alone, other]
        assert answer.usage.prompt_tokens == 6


def test_choice_indices_are_consecutive_across_prompts(server: Server) -> None:
    both = complete(server, ["abc", "xyz"], n=2, temperature=1.0)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    apart = [c.text for p in ("abc", "xyz") for c in complete(server, p, n=2, temperature=1.0).choices]
    assert [choice.text for choice in both.choices] == apart
    texts = dict.fromkeys(range(4), "")
    for chunk in complete(server, ["abc", "xyz"], n=2, temperature=1.0, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == apart


def test_legacy_logprobs(server: Server) -> None:
    choice = complete(server, logprobs=3).choices[0]
    shown = choice.logprobs
    assert (
        len(shown.tokens)
        == len(shown.token_logprobs)
        == len(shown.top_logprobs)
        == len(shown.text_offset)
        == 8
    )
    assert shown.text_offset[0] == 0
    for logprob, top in zip(shown.token_logprobs, shown.top_logprobs, strict=True):
        assert len(top) == 3
        assert logprob == max(top.values())  # greedy


def test_echo_scores_the_prompt_for_lm_eval(server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": "abcdef"}).json()["tokens"]
    body = {
        "prompt": [ids, ids[:4]],
        "max_tokens": 1,
        "logprobs": 1,
        "echo": True,
        "temperature": 0,
        "seed": 1234,
    }
    answer = server.post("/v1/completions", body).json()
    for choice, length in zip(answer["choices"], (6, 4), strict=True):
        shown = choice["logprobs"]
        assert choice["text"].startswith("abcdef"[:length])
        assert shown["tokens"][:length] == list("abcdef"[:length])
        assert shown["text_offset"][:length] == list(range(length))
        assert shown["token_logprobs"][0] is None
        assert shown["top_logprobs"][0] is None
        assert len(shown["token_logprobs"]) == length + 1
        assert all(math.isfinite(value) for value in shown["token_logprobs"][1:])
        assert shown["token_logprobs"][-1] == max(shown["top_logprobs"][-1].values())
    first, second = (choice["logprobs"]["token_logprobs"] for choice in answer["choices"])
    assert first[:4] == second[:4]  # bit-identical
    by_scores = server.post("/v1/completions", body | {"prompt": ids, "prompt_logprobs": 1, "echo": False})
    scores = by_scores.json()["choices"][0]["prompt_logprobs"]
    assert [scores[i][str(ids[i])]["logprob"] for i in range(1, 6)] == first[1:6]


def test_echo_without_generated_tokens(server: Server) -> None:
    answer = complete(server, max_tokens=0, echo=True, logprobs=1)
    assert answer.choices[0].text == "abc"
    assert len(answer.choices[0].logprobs.tokens) == 3
    assert answer.usage.completion_tokens == 0
    (*_, last) = complete(
        server, max_tokens=0, echo=True, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage.completion_tokens == 0


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_concatenates_to_the_whole_answer(server: Server, logprobs: int | None) -> None:
    fields = {"n": 2, "temperature": 1.0, "echo": True, "logprobs": logprobs}
    whole = complete(server, ["abc", "xyz"], **fields)
    texts: dict[int, str] = dict.fromkeys(range(4), "")
    scores: dict[int, list[Json]] = {index: [] for index in range(4)}
    finishes = []
    for chunk in complete(server, ["abc", "xyz"], stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                shown = choice.logprobs
                scores[choice.index] += zip(
                    shown.tokens, shown.token_logprobs, shown.top_logprobs, shown.text_offset, strict=True
                )
            if choice.finish_reason:
                finishes.append(choice.index)
    assert sorted(finishes) == [0, 1, 2, 3]
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        shown = choice.logprobs
        expected = (
            []
            if shown is None
            else list(
                zip(shown.tokens, shown.token_logprobs, shown.top_logprobs, shown.text_offset, strict=True)
            )
        )
        assert scores[choice.index] == expected


def test_token_ids(server: Server) -> None:
    choice = complete(server, extra={"return_token_ids": True}).choices[0]
    assert len(choice.prompt_token_ids) == 3
    assert len(choice.token_ids) == 8
    chunks = list(complete(server, stream=True, extra={"return_token_ids": True}))
    assert [i for chunk in chunks for i in chunk.choices[0].token_ids] == choice.token_ids
    assert chunks[0].choices[0].prompt_token_ids == choice.prompt_token_ids


def test_tokenize_and_detokenize(server: Server) -> None:
    shown = server.post("/tokenize", {"prompt": "hé<|end|>", "return_token_strs": True}).json()
    assert shown["count"] == len(shown["tokens"]) == 4
    assert shown["token_strs"][-1] == "<|end|>"
    assert shown["max_model_len"] == 512
    assert server.post("/detokenize", {"tokens": shown["tokens"]}).json() == {"prompt": "hé<|end|>"}
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]}).json()
    assert chat["count"] == 4
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|end|>"
    assert "message.role" in info["chat_template"]


def test_models(server: Server) -> None:
    client = server.client()
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "octavo")
    assert model.max_model_len == 512  # type: ignore[attr-defined]
    assert client.models.retrieve("tiny") == model
