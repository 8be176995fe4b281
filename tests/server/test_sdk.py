"""Other features of OpenAI's client: raw responses, helpers, errors, timeouts and retries."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ParsedChatCompletion

from data.json_types import JsonObject
from patience import HANG_SECONDS
from server.held_loading import HeldLoading
from server.process import Server, StartServer

pytestmark = pytest.mark.xdist_group("server")

HELLO = [{"role": "user", "content": "hello"}]
ASKED: JsonObject = {"model": "tiny", "messages": HELLO, "seed": 7, "max_completion_tokens": 12}
LONG: JsonObject = {"model": "tiny", "prompt": "x", "max_tokens": 500, "extra_body": {"ignore_eos": True}}
SHORT: JsonObject = {"model": "tiny", "prompt": "x", "seed": 7, "max_tokens": 6}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


def content(client: openai.OpenAI) -> str | None:
    answer: ChatCompletion = client.chat.completions.create(**ASKED)
    return answer.choices[0].message.content


def test_raw_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.parse().choices[0].message.content == content(client)
    streamed = client.completions.with_raw_response.create(**SHORT, stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert list(streamed.parse())[-1].choices[0].finish_reason == "length"


def test_streaming_responses(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(**ASKED) as response:
        assert response.parse().choices[0].message.content == content(client)
    with client.chat.completions.with_streaming_response.create(**ASKED, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_the_stream_helper(server: Server, client: openai.OpenAI) -> None:
    """The helper raises if an answer ends at its maximum length, so these answers end with a stop token."""
    asked = ASKED | {"n": 2, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}
    asked |= {"logit_bias": {"256": 100}, "extra_body": {"min_tokens": 8}}
    whole: ChatCompletion = client.chat.completions.create(
        **{k: v for k, v in asked.items() if k != "stream_options"}
    )
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds

    async def at_once() -> ParsedChatCompletion[None]:
        async with server.async_client() as other, other.chat.completions.stream(**asked) as stream:
            completion: ParsedChatCompletion[None] = await stream.get_final_completion()
            return completion

    for completion in (final, asyncio.run(at_once())):
        assert [c.message.content for c in completion.choices] == [c.message.content for c in whole.choices]
        # With any server, the helper counts the logprobs of the first chunk twice for later choices.
        assert completion.choices[0].logprobs == whole.choices[0].logprobs
        assert [c.finish_reason for c in completion.choices] == [c.finish_reason for c in whole.choices]
        assert completion.usage is not None
        assert whole.usage is not None
        assert completion.usage.completion_tokens == 2 * 9 == whole.usage.completion_tokens
        assert completion.system_fingerprint == whole.system_fingerprint


def test_extra_headers_queries_and_bodies(client: openai.OpenAI) -> None:
    answer: ChatCompletion = client.chat.completions.create(
        **ASKED,
        extra_headers={"x-request-id": "mine"},
        extra_query={"api-version": "1"},
        extra_body={"return_token_ids": True},
    )
    assert len(answer.choices[0].token_ids) == 12  # type: ignore[attr-defined]


def test_every_kind_of_error(start: StartServer) -> None:
    """Each status raises its exception, with the contents of the body."""
    server = start(
        "--api-key", "secret", "--served-model-name", "tiny", "--max-body", "4KiB"
    ).wait_until_ready()
    client = server.client(api_key="secret")
    cases: list[tuple[type[openai.APIStatusError], int, str | None, Callable[[], object]]] = [
        (openai.BadRequestError, 400, None, lambda: client.chat.completions.create(**ASKED | {"n": 0})),
        (
            openai.BadRequestError,
            400,
            "context_length_exceeded",
            lambda: client.completions.create(model="tiny", prompt="x" * 600),
        ),
        (openai.AuthenticationError, 401, "invalid_api_key", server.client(api_key="wrong").models.list),
        (openai.NotFoundError, 404, "model_not_found", lambda: client.models.retrieve("other")),
        (
            openai.APIStatusError,
            408,
            "deadline_exceeded",
            lambda: client.completions.create(**LONG | {"extra_body": {"timeout": 0.001}}),
        ),
        (
            openai.APIStatusError,
            413,
            "request_too_large",
            lambda: client.completions.create(model="tiny", prompt="x" * 5000),
        ),
    ]
    for kind, status, code, call in cases:
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.status_code, caught.value.code) == (status, code)
        assert caught.value.request_id is not None
        assert caught.value.body["message"]  # type: ignore[index]


def test_an_error_in_mid_stream_is_raised(client: openai.OpenAI) -> None:
    timeout, stream = 0.05, None
    while stream is None:
        fields = {"ignore_eos": True, "timeout": timeout}
        try:
            stream = client.completions.create(**LONG | {"extra_body": fields}, stream=True)
        except openai.APIStatusError as error:
            if error.code != "deadline_exceeded":
                raise
            timeout *= 2  # on a slow machine, the deadline was before the stream
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert caught.value.code == "deadline_exceeded"


def test_a_client_timeout_ends_the_request(server: Server) -> None:
    client = server.client(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(**LONG)
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        if re.search(r"^octavo:num_requests_running\S* 0", server.get("/metrics").text, re.M):
            return
        time.sleep(0.05)
    raise AssertionError(server.get("/metrics").text)


def test_a_retrying_client_does_not_notice_loading(start: StartServer, tmp_path: Path) -> None:
    """503 with Retry-After is sufficient."""
    loading = HeldLoading(tmp_path)
    server = start("--served-model-name", "tiny", environ=loading.environ)
    with pytest.raises(openai.InternalServerError) as caught:
        server.client().models.list()
    assert int(caught.value.response.headers["retry-after"]) >= 1
    loading.go_on()
    patient = server.client(max_retries=30)
    assert patient.chat.completions.create(**ASKED).choices[0].finish_reason == "length"


def test_a_retrying_client_gets_through_a_full_queue(start: StartServer) -> None:
    """429 with Retry-After is sufficient: every client gets its answer in the end."""
    server = start("--served-model-name", "tiny", "--max-running", "1", "--max-queued-requests", "1")
    server.wait_until_ready()
    asked = LONG | {"max_tokens": 100}
    all_there = threading.Barrier(6)
    refusals: list[openai.RateLimitError] = []
    finishes: list[str] = []

    def ask() -> None:
        impatient = server.client()
        all_there.wait(HANG_SECONDS)
        try:
            impatient.completions.create(**asked)
        except openai.RateLimitError as error:
            refusals.append(error)
        finishes.append(server.client(max_retries=30).completions.create(**asked).choices[0].finish_reason)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=HANG_SECONDS)
    assert finishes == ["length"] * 6
    assert refusals
    for error in refusals:
        assert error.code == "rate_limit_exceeded"
        assert int(error.response.headers["retry-after"]) >= 1


def test_async_raw_responses_and_cancelled_streams(server: Server) -> None:
    async def run() -> tuple[ChatCompletion, ChatCompletion, Completion]:
        async with server.async_client() as client:
            raw = await client.chat.completions.with_raw_response.create(**ASKED)
            async with client.chat.completions.with_streaming_response.create(**ASKED) as response:
                parsed = await response.parse()
            stream = await client.completions.create(**LONG, stream=True)
            first = await anext(aiter(stream))
            await stream.close()  # cancels the rest
            return raw.parse(), parsed, first

    raw, parsed, first = asyncio.run(run())
    assert raw.choices[0].message.content == parsed.choices[0].message.content
    assert first.choices[0].text is not None
