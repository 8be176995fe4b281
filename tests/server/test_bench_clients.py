"""Requests as load generators send them, and streams as they read them.

guidellm and `vllm bench serve` are too large to install here. These tests reproduce what they send and what
they read from the answer, according to their sources (guidellm 0.8.1; vLLM's endpoint_request_func.py).
docs/evaluate.md has the commands.
"""

import json

import httpx
import pytest

from data.json_types import Json
from patience import HANG_SECONDS
from server.bench_reader import BenchReader
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")

USAGE = {"include_usage": True, "continuous_usage_stats": True}
PROMPT = "a prompt of some length that somebody made up"


def guidellm_stream(server: Server, path: str, body: Json) -> tuple[list[str], Json]:
    """Read line by line until [DONE]. An iteration is a line whose first choice has text."""
    texts, usage = [], None
    with httpx.stream("POST", server.url + path, json=body, timeout=HANG_SECONDS) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.strip().startswith("data:"):
                continue
            data = line.strip().removeprefix("data:").strip()
            if data == "[DONE]":
                break
            event = json.loads(data)
            assert not event.get("error")
            choice = (event.get("choices") or [{}])[0]
            text = choice.get("text") or choice.get("delta", {}).get("content")
            texts += [text] if text else []
            usage = event.get("usage") or usage
    return texts, usage


def test_requests_as_sent_by_guidellm(server: Server) -> None:
    assert server.get("/health").status_code == 200
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["tiny"]
    asked = {"model": "tiny", "ignore_eos": True}
    streamed = asked | {"stream": True, "stream_options": USAGE}
    content = [{"type": "text", "text": PROMPT}]
    chat = {
        "max_completion_tokens": 24,
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": content}],
    }
    for path, body in (
        ("/v1/completions", {"max_tokens": 24, "prompt": PROMPT, "stop": None}),
        ("/v1/chat/completions", chat),
    ):
        texts, usage = guidellm_stream(server, path, streamed | body)
        whole = server.post(path, asked | body).json()
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 24
        assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"] > 40
        assert texts


def test_requests_as_sent_by_vllm_bench(server: Server) -> None:
    asked = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    content = [{"type": "text", "text": PROMPT}]
    for path, body in (
        (
            "/v1/completions",
            {"prompt": PROMPT, "max_tokens": 24, "repetition_penalty": 1.0, "logprobs": None, "seed": 7},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 24, "seed": 7},
        ),
    ):
        reader = BenchReader()
        headers = {"x-request-id": "bench-0"}
        with httpx.stream(
            "POST", server.url + path, json=asked | body, headers=headers, timeout=HANG_SECONDS
        ) as response:
            assert response.status_code == 200
            for piece in response.iter_raw():
                reader.read(piece)
        whole = server.post(path, body | {"model": "tiny", "ignore_eos": True}).json()
        choice = whole["choices"][0]
        assert reader.text == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert reader.usage["completion_tokens"] == 24
        assert reader.num_token_events > 1
