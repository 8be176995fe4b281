"""Chat completions, requested with OpenAI's client."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from data.json_types import Json, JsonObject
from octavo import LLM
from server.process import Server, StartServer

pytestmark = pytest.mark.xdist_group("server")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
LOVES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a colour."},
]


def chat(server: Server, **fields: Json) -> Any:
    """Return an answer or a stream of chunks, with Octavo fields that the client's types do not declare."""
    extra = fields.pop("extra", None)
    asked: JsonObject = {"model": "tiny", "messages": HELLO, "seed": 7, "max_completion_tokens": 12} | fields
    return server.client().chat.completions.create(**asked, extra_body=extra)


def text(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_every_response_field(server: Server) -> None:
    answer = chat(server)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert abs(answer.created - time.time()) < 60
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.refusal, choice.message.tool_calls) == (
        "assistant",
        None,
        None,
    )
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len("hello") + 3  # <|user|> ... <|end|> <|assistant|>
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer._request_id.startswith("req_")


def test_the_answer_equals_the_offline_answer(server: Server, tiny_checkpoint: Path) -> None:
    with LLM(str(tiny_checkpoint), kv_memory="4MiB") as llm:
        params = msgspec.structs.replace(llm.default_params, seed=7, max_tokens=12, logprobs=3)
        (expected,) = llm.chat(HELLO, params)
    answer = chat(server, logprobs=True, top_logprobs=3)
    assert text(answer) == expected.text
    assert expected.choices[0].logprobs is not None
    assert [entry.logprob for entry in answer.choices[0].logprobs.content] == [
        entry.logprob for entry in expected.choices[0].logprobs
    ]


def test_a_stream_concatenates_to_the_whole_answer(server: Server) -> None:
    whole = chat(server, n=2, logprobs=True, top_logprobs=2)
    pieces: dict[int, list[Any]] = {0: [], 1: []}
    tail = []
    for chunk in chat(
        server, n=2, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "chat.completion.chunk"
        tail.append(chunk)
        for choice in chunk.choices:
            pieces[choice.index].append(choice)
    for choice in whole.choices:
        parts = pieces[choice.index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        streamed = [entry for part in parts for entry in part.logprobs.content]
        assert streamed == choice.logprobs.content
    assert tail[-1].choices == []
    assert tail[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in tail[:-1])
    assert len({chunk.id for chunk in tail}) == 1


def test_the_plain_stream_has_the_same_text(server: Server) -> None:
    chunks = list(chat(server, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text(chat(server))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content


def test_concurrent_streams_of_the_async_client(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, seed=seed, max_tokens=20, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(8)))

    alone = [text(chat(server, seed=seed, max_completion_tokens=20)) for seed in range(8)]
    assert asyncio.run(all_of_them()) == alone
    assert len(set(alone)) > 4


def test_max_completion_tokens_wins_over_max_tokens(server: Server) -> None:
    assert chat(server, max_tokens=3).usage.completion_tokens == 12
    assert chat(server, max_tokens=3, max_completion_tokens=None).usage.completion_tokens == 3


def test_fields_that_change_the_tokens(server: Server) -> None:
    plain = text(chat(server, temperature=0))
    assert text(chat(server, temperature=0)) == plain
    for fields in (
        {"temperature": 1.5},
        {"temperature": 0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"temperature": 0, "logit_bias": {"65": 100}},
        {"temperature": 0, "extra": {"repetition_penalty": 3.0}},
    ):
        assert text(chat(server, **fields)) != plain, fields
    for narrow in ({"top_p": 1e-6}, {"extra": {"top_k": 1}}, {"extra": {"min_p": 1.0}}):
        assert text(chat(server, temperature=1.0, **narrow)) == plain, narrow
    assert text(chat(server, temperature=0, extra={"top_k": -1})) == plain
    assert text(chat(server, temperature=0, logit_bias={"65": 100}))[:4] == "bbbb"  # ids of bytes are shifted


def test_stop_strings_and_stop_tokens(server: Server) -> None:
    whole = text(chat(server, temperature=0))
    stop = whole[3:5]
    cut = chat(server, temperature=0, stop=stop)
    assert text(cut) == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert text(chat(server, temperature=0, stop=["never there", stop])) == text(cut)
    kept = chat(server, temperature=0, stop=stop, extra={"include_stop_str_in_output": True})
    assert text(kept) == whole[: whole.index(stop) + 2]
    ids = chat(server, temperature=0, extra={"return_token_ids": True}).choices[0].token_ids
    by_token = chat(server, temperature=0, extra={"stop_token_ids": [ids[2]], "octavo": True})
    assert by_token.octavo["requests"][0]["choices"][0]["stop_reason"] == ids[2]


def test_ends_of_sequence(server: Server) -> None:
    always = {"256": 100}  # <|end|>
    ended = chat(server, temperature=0, logit_bias=always)
    assert (text(ended), ended.choices[0].finish_reason) == ("", "stop")
    longer = chat(server, temperature=0, logit_bias=always, extra={"min_tokens": 4})
    assert longer.usage.completion_tokens == 5
    ignored = chat(server, temperature=0, logit_bias=always, extra={"ignore_eos": True})
    assert (ignored.usage.completion_tokens, ignored.choices[0].finish_reason) == (12, "length")
    shown = chat(
        server,
        temperature=0,
        logit_bias=always,
        extra={"ignore_eos": True, "skip_special_tokens": False},
        max_completion_tokens=2,
    )
    assert text(shown) == "<|end|><|end|>"
    (chunk,) = chat(server, temperature=0, logit_bias=always, stream=True)  # the role is sent nevertheless
    assert (chunk.choices[0].delta.role, chunk.choices[0].delta.content) == ("assistant", "")


def test_token_ids_and_prompt_logprobs(server: Server) -> None:
    answer = chat(server, extra={"return_token_ids": True, "prompt_logprobs": 2})
    assert answer.prompt_token_ids[0] == 257  # <|user|>
    assert len(answer.choices[0].token_ids) == 12
    scores = answer.prompt_logprobs
    assert scores[0] is None
    assert len(scores) == len(answer.prompt_token_ids)
    for token_id, entries in zip(answer.prompt_token_ids[1:], scores[1:], strict=True):
        assert 2 <= len(entries) <= 3
        assert str(token_id) in entries
    chunks = list(chat(server, stream=True, extra={"return_token_ids": True}))
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids
    assert [i for chunk in chunks for i in chunk.choices[0].token_ids] == answer.choices[0].token_ids


def test_continuous_usage(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in chat(server, stream=True, stream_options=options)]
    assert counts == [*range(1, 13), 12]


def test_messages_of_all_kinds(server: Server) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert text(chat(server, messages=[{"role": "user", "content": parts}])) == text(chat(server))
    as_system = chat(server, messages=[{"role": "system", "content": "x"}, *HELLO])
    as_developer = chat(server, messages=[{"role": "developer", "content": "x"}, *HELLO])
    assert text(as_system) == text(as_developer)


def test_template_options(server: Server) -> None:
    shown = {"octavo": {"prompt": True}}

    def prompt(**extra: Json) -> str:
        answer = chat(server, messages=[*HELLO, {"role": "assistant", "content": "So"}], extra=shown | extra)
        return str(answer.octavo["requests"][0]["prompt"])

    assert prompt() == "<|user|>hello<|end|><|assistant|>So<|end|><|assistant|>"
    assert prompt(add_generation_prompt=False) == "<|user|>hello<|end|><|assistant|>So<|end|>"
    assert prompt(continue_final_message=True) == "<|user|>hello<|end|><|assistant|>So"
    assert prompt(chat_template_kwargs={"unknown": 1}) == prompt()


def test_the_octavo_block_explains_a_request(server: Server) -> None:
    fresh = f"a prompt that nobody has sent before {id(server)}"
    fields = {"messages": [{"role": "user", "content": fresh}], "extra": {"octavo": True}}
    first, again = (chat(server, **fields).octavo["requests"][0] for _ in range(2))
    assert first["cached_tokens"] == 0
    assert first["first_miss"] == {"position": 0, "token_id": 257, "token": "<|user|>"}
    assert again["cached_tokens"] >= 32
    assert again["first_miss"]["position"] == again["cached_tokens"]
    assert first["seed"] == 7
    assert "prompt" not in first
    (choice,) = first["choices"]
    assert choice["tokens"] == 12
    assert choice["prefill_seconds"] > 0
    assert choice["decode_seconds"] > 0
    assert choice["queue_seconds"] >= 0
    *_, last = chat(server, stream=True, **fields)
    assert (last.choices, last.octavo["engine_restarts"]) == ([], 0)


def test_the_octavo_block_lists_every_chunk_of_the_prompt(start: StartServer) -> None:
    """Chunks and cached tokens add up to the prompt, and their steps to the prefill time, streamed or not."""
    server = start("--max-step-tokens", "64", "--max-running", "8", "--served-model-name", "tiny")
    server.wait_until_ready()
    prompt = "a prompt of several chunks, each of which is told " * 6
    extra = {"octavo": True}

    def explained(stream: bool, text: str) -> Json:
        answer = chat(server, messages=[{"role": "user", "content": text}], stream=stream, extra=extra)
        return (list(answer)[-1] if stream else answer).octavo["requests"][0]

    for stream in (False, True):
        for text in (f"{stream} {prompt}", f"{stream} {prompt}", f"{stream} {prompt} and more"):
            explanation = explained(stream, text)
            (choice,) = explanation["choices"]
            chunks, position = choice["prefill_chunks"], explanation["cached_tokens"]
            assert len(chunks) == -(-(explanation["prompt_tokens"] - position) // 64)
            for chunk in chunks:
                assert chunk["start"] == position
                position += chunk["tokens"]
            assert position == explanation["prompt_tokens"]
            assert explanation["first_miss"]["position"] == chunks[0]["start"]
            spent = sum(chunk["seconds"] for chunk in chunks)
            assert 0 < spent <= choice["prefill_seconds"] + 1e-5
            assert choice["prefill_chunks_left_out"] == 0


def test_cache_salts_isolate_prefixes(server: Server) -> None:
    messages = [{"role": "user", "content": f"a long enough prompt to fill blocks {id(server)} salt"}]

    def cached(salt: str) -> int:
        answer = chat(server, messages=messages, extra={"cache_salt": salt})
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0


def test_fields_that_are_accepted_and_ignored(server: Server) -> None:
    plain = text(chat(server))
    ignored = {
        "user": "me",
        "safety_identifier": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "verbosity": "low",
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "response_format": {"type": "text"},
        "tool_choice": "none",
    }
    extra = {"an_unknown_field": [1, {"x": None}], "priority": -3, "timeout": 30, "logit_bias": None}
    assert text(chat(server, **ignored, extra=extra)) == plain


@pytest.mark.assets
def test_a_conversation_with_a_real_model(smollm2: Server) -> None:
    client = smollm2.client()
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "What is the capital of France?"}
    ]
    answer = client.chat.completions.create(
        model="smollm2", messages=messages, temperature=0, max_completion_tokens=24
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in ("stop", "length")
    with client.chat.completions.stream(
        model="smollm2", messages=messages, temperature=0, max_completion_tokens=24
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.assets
def test_arguments_of_tool_calls_reach_the_template_as_objects(smollm2: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [
        {"role": "user", "content": "Call f."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    body = {"messages": history, "max_tokens": 2, "octavo": {"prompt": True}}
    answered = smollm2.post("/v1/chat/completions", body)
    assert answered.status_code == 200, answered.text
