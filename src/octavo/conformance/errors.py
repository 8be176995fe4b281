"""Checks of the errors that invalid requests get."""

from collections.abc import Mapping
from typing import Any

from octavo.conformance.check import Check, NotSupported, expect, expect_equal, expect_kind
from octavo.conformance.target import CheckTarget, user
from octavo.conformance.transport import Reply

GROUP = "errors"
NO_MODEL = "there-is-no-such-model"
MAX_CONTEXT = 1_000_000  # servers reject the body of a longer prompt for its size


def check_error(reply: Reply, status: int, *, param: str | None = None, code: str | None = None) -> None:
    expect_equal("the status", reply.status, status)
    _check_error_body(reply)
    error = reply.json["error"]
    if param is not None:
        found = error.get("param")
        expect(isinstance(found, str) and found.startswith(param), f"param is {found!r}, not {param!r}")
    if code is not None:
        expect_equal("code", error.get("code"), code)


def _check_error_body(reply: Reply) -> None:
    content = reply.json
    expect_kind("the body", content, dict)
    error = content.get("error")
    expect_kind("error", error, dict)
    expect_kind("error.message", error.get("message"), str)
    expect_kind("error.type", error.get("type"), str)
    expect(error["message"], "error.message is empty")
    for name in ("param", "code"):
        expect(name in error, f"error.{name} is missing")
    expect(isinstance(error["code"], str | None), "error.code is not a string")


def _chat_with(target: CheckTarget, **fields: Any) -> Reply:
    return target.post("/chat/completions", target.chat_fields(**fields))


def bad_value(target: CheckTarget) -> None:
    check_error(_chat_with(target, temperature=-1), 400, param="temperature")
    check_error(_chat_with(target, top_p=7), 400, param="top_p")


def bad_type(target: CheckTarget) -> None:
    check_error(_chat_with(target, messages="hello"), 400, param="messages")
    check_error(_chat_with(target, max_tokens="many"), 400, param="max_tokens")


def missing_field(target: CheckTarget) -> None:
    reply = target.post("/chat/completions", {"model": target.model})
    check_error(reply, 400, param="messages")


def malformed_json(target: CheckTarget) -> None:
    for body in (b"{", b'{"model": ', b"\xff\xfe"):
        check_error(target.post("/chat/completions", body), 400)


def unknown_model(target: CheckTarget) -> None:
    check_error(_chat_with(target, model=NO_MODEL), 404, code="model_not_found")


def unknown_path(target: CheckTarget) -> None:
    expect_equal("the status", target.get("/there/is/nothing/here").status, 404)


def error_before_stream(target: CheckTarget) -> None:
    """Check that an error known before the stream starts is a status, not an event."""
    check_error(_chat_with(target, temperature=-1, stream=True), 400, param="temperature")


def wrong_key(target: CheckTarget) -> None:
    if not target.api_key:
        raise NotSupported("no API key was given")
    for key in ("", f"{target.api_key}-wrong"):
        reply = target.post("/chat/completions", target.chat_fields(), api_key=key)
        check_error(reply, 401)
    expect_equal("the status of /models", target.get("/models", api_key="").status, 401)


def context_overflow(target: CheckTarget) -> None:
    content = target.get(f"/models/{target.model}").json
    length = content.get("max_model_len") if isinstance(content, dict) else None
    if not isinstance(length, int) or length > MAX_CONTEXT:
        raise NotSupported("/models does not report max_model_len")
    reply = _chat_with(target, messages=user("a b " * length))
    check_error(reply, 400, code="context_length_exceeded")


# Servers may accept or reject these, but without a 5xx and without a validation library's 422.
ODD_FIELDS: tuple[Mapping[str, Any], ...] = (
    {"n": 0},
    {"n": 10**9},
    {"max_tokens": -1},
    {"max_tokens": 1.5},
    {"messages": []},
    {"messages": [{}]},
    {"messages": [{"role": "nobody", "content": "a"}]},
    {"messages": [{"role": "user", "content": 7}]},
    {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]},
    {"logprobs": True, "top_logprobs": 999},
    {"top_logprobs": "two"},
    {"stop": 5},
    {"stop": [""]},
    {"seed": "s"},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"999999999": 1}},
    {"stream": "yes"},
    {"stream_options": 1},
    {"temperature": True},
    {"model": 5},
)
ODD_PROMPTS: tuple[Any, ...] = (None, [], {}, [[]], [None], [-1], [10**12], ["a", 1], [[1], "a"], 5)
ODD_BODIES = (b"", b"null", b"[]", b'"text"', b"1e999", b'{"messages": NaN}', b"[" * 5000)


def odd_chats(target: CheckTarget) -> None:
    for fields in ODD_FIELDS:
        _check_no_failure(_chat_with(target, **fields), str(dict(fields)))


def odd_completions(target: CheckTarget) -> None:
    for prompt in ODD_PROMPTS:
        reply = target.post("/completions", target.completion_fields(prompt=prompt))
        _check_no_failure(reply, f"prompt {prompt}")


def odd_bodies(target: CheckTarget) -> None:
    for path in ("/chat/completions", "/completions"):
        for body in ODD_BODIES:
            _check_no_failure(target.post(path, body), repr(body[:20]))


def _check_no_failure(reply: Reply, request: str) -> None:
    expect(reply.status < 500 and reply.status != 422, f"{reply.status} for {request}"[:80])
    if reply.status >= 400:
        _check_error_body(reply)


CHECKS = (
    Check(GROUP, "400 with param: invalid value", bad_value),
    Check(GROUP, "400 with param: invalid type", bad_type),
    Check(GROUP, "400 with param: missing field", missing_field),
    Check(GROUP, "400 for malformed JSON", malformed_json),
    Check(GROUP, "404 model_not_found", unknown_model),
    Check(GROUP, "404 for an unknown path", unknown_path),
    Check(GROUP, "400 before a stream", error_before_stream),
    Check(GROUP, "401 without a valid key", wrong_key),
    Check(GROUP, "400 context_length_exceeded", context_overflow),
    Check(GROUP, "odd chats: never 422 or 5xx", odd_chats),
    Check(GROUP, "odd completions: never 422 or 5xx", odd_completions),
    Check(GROUP, "odd bodies: never 422 or 5xx", odd_bodies),
)
