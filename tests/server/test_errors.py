"""Every error has the same format and the right status, and reveals no internals."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from functools import partial

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from data.json_types import JsonObject
from grammar.hostile import HOSTILE
from patience import HANG_SECONDS
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
LEAKS = re.compile(r"0x[0-9a-f]{6}|Traceback|site-packages|\.py\b|File \"")


def check(answer: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert not LEAKS.search(answer.text)
    assert answer.headers["x-request-id"].startswith("req_")
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 10**30}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"seed": 1 << 65}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 500, "max_tokens": 1}, "min_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"priority": 1 << 40}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_the_error_names_the_invalid_field(server: Server, fields: JsonObject, param: str) -> None:
    check(server.post(CHAT, {"messages": HELLO} | fields), 400, param)
    check(server.post(COMPLETIONS, {"prompt": "abc"} | fields), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": HELLO * 400}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_schema"}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"audio": {}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_errors_specific_to_chat(server: Server, fields: JsonObject, param: str) -> None:
    check(server.post(CHAT, {"messages": HELLO} | fields), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, 260]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 70]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ["a"] * 513}, None),
    ],
)
def test_errors_specific_to_completions(server: Server, fields: JsonObject, param: str | None) -> None:
    check(server.post(COMPLETIONS, {"prompt": "abc"} | fields), 400, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"messages": "x", "messages": [1], "prompt": 1, "prompt": {}, "tokens": "x"}',
    ],
)
def test_bodies_that_are_not_a_request(server: Server, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    check(httpx.post(server.url + path, content=body, headers=headers, timeout=HANG_SECONDS), 400)


def test_context_overflow_has_the_message_that_clients_look_for(server: Server) -> None:
    for body in ({"prompt": "x" * 600}, {"prompt": "x", "max_tokens": 512}, {"prompt": "x" * 512}):
        answer = server.post(COMPLETIONS, body)
        check(answer, 400, code="context_length_exceeded")
        assert "This model's maximum context length is 512 tokens" in answer.json()["error"]["message"]


def test_unknown_models_paths_methods_and_content_types(server: Server) -> None:
    check(server.post(CHAT, {"messages": HELLO, "model": "gpt-9"}), 404, "model", "model_not_found")
    check(server.get("/v1/models/gpt-9"), 404, "model", "model_not_found")
    check(server.get("/v1/nothing"), 404)
    check(server.get(CHAT), 405)
    check(
        httpx.post(
            server.url + CHAT, content=b"{}", headers={"content-type": "text/plain"}, timeout=HANG_SECONDS
        ),
        415,
    )
    compressed = {"content-type": "application/json", "content-encoding": "gzip"}
    check(httpx.post(server.url + CHAT, content=b"\x1f\x8b", headers=compressed, timeout=HANG_SECONDS), 415)
    check(server.post("/tokenize", {"prompt": "a", "messages": HELLO}), 400, "prompt")
    check(server.post("/detokenize", {"tokens": [260]}), 400, "tokens")


def test_a_large_body_is_rejected_before_it_is_read(server: Server) -> None:
    check(server.post(COMPLETIONS, {"prompt": "x" * (5 << 20)}), 413, code="request_too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(1 << 10):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    with contextlib.suppress(httpx.TransportError):  # closed while sending: also correct
        check(
            httpx.post(server.url + COMPLETIONS, content=endless(), headers=headers, timeout=HANG_SECONDS),
            413,
        )
    assert server.get("/livez").status_code == 200


def test_oversized_headers_are_rejected_early(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
        sent = 0
        received = b""
        try:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Large: ")
            while sent < 10 << 20:
                sent += connection.send(b"x" * 65536)
            received = connection.recv(65536)
        except OSError:
            pass
    assert sent < 10 << 20 or b"431" in received
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nX-Large: " + b"x" * (70 << 10))
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 431")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["message"] == "the headers are too large"
    assert server.get("/livez").status_code == 200


def test_input_that_is_not_http_gets_an_error(server: Server) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
            connection.sendall(sent)
            received = b"".join(iter(partial(connection.recv, 65536), b""))
        assert received.startswith(b"HTTP/1.1 400"), sent
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_the_client_raises_the_expected_exceptions(server: Server) -> None:
    client = server.client()
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=9999)
    assert caught.value.param == "temperature"


def test_a_deadline_ends_a_request(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "timeout": 0.01}
    check(server.post(COMPLETIONS, body), 408, code="deadline_exceeded")
    streamed = server.post(COMPLETIONS, body | {"stream": True, "timeout": 0.05})
    if streamed.status_code != 200:  # on a slow machine, the deadline can pass before the stream begins
        check(streamed, 408, code="deadline_exceeded")
        return
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "deadline_exceeded"


def test_the_description_of_the_api_names_every_endpoint(server: Server) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert {CHAT, COMPLETIONS, "/v1/models", "/tokenize", "/detokenize", "/tokenizer_info", "/readyz"} <= set(
        paths
    )
    body = paths[CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "max_completion_tokens" in body["properties"]


def test_a_grammar_that_fails_in_mid_answer_is_a_client_error(server: Server) -> None:
    """This shows only in mid-answer, and is not a failure of the engine."""
    grammar = HOSTILE["lark: rules after a beginning"].text
    body = {"prompt": "x", "max_tokens": 8, "seed": 1, "structured_outputs": {"grammar": grammar}}
    check(server.post(COMPLETIONS, body), 400, code="grammar_too_complex")
    streamed = server.post(COMPLETIONS, body | {"stream": True}).text
    assert '"code":"grammar_too_complex"' in streamed
    assert streamed.endswith("data: [DONE]\n\n")
