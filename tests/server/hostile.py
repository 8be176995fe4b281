"""Malformed request bodies, and the checks that every answer must pass."""

import json
import math
import random
import re
import types
import typing

import pydantic

from data.json_types import Json, JsonObject
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.server.ollama.schema import OllamaChat, OllamaCompletion, OllamaShow
from octavo.server.openai.responses.schema import ResponsesRequest
from octavo.server.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
MODELS: dict[str, type[pydantic.BaseModel]] = {
    CHAT: ChatRequest,
    COMPLETIONS: CompletionRequest,
    RESPONSES: ResponsesRequest,
    MESSAGES: MessagesRequest,
    COUNT_TOKENS: CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    OLLAMA_CHAT: OllamaChat,
    OLLAMA_GENERATE: OllamaCompletion,
    "/api/show": OllamaShow,
}
GOOD: dict[str, JsonObject] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 2},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
    OLLAMA_CHAT: {
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"num_predict": 2},
        "stream": False,
    },
    OLLAMA_GENERATE: {"prompt": "hi", "options": {"num_predict": 2}, "stream": False},
    "/api/show": {"model": "tiny"},
}
LEAKS = re.compile(r"0x[0-9a-fA-F]{6}|Traceback|site-packages|\w\.py\b|File \"|/(?:tmp|root|home|usr|proc)/")

# Raw JSON, because json.dumps cannot write some of these values.
NEVER_A_NUMBER = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"1"', "true", "[]", "{}", "9" * 4301)
STRANGE_NUMBERS = (
    "9223372036854775808",
    "18446744073709551616",
    "-1",
    "-1e308",
    "1e-320",
    "0",
    "0.5",
    "null",
)
STRANGE = (
    *NEVER_A_NUMBER,
    *STRANGE_NUMBERS,
    '""',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    "[null]",
    "[[]]",
    "[[[1]]]",
    '{"":""}',
    '{"type":"text"}',
    "[1e9]",
    "[-1,260]",
    '"' + "x" * 2000 + '"',
    "[" + ",".join(["0"] * 2000) + "]",
    "[" * 40 + "]" * 40,
    "[" * 600 + "]" * 600,
)

PLAUSIBLE = (
    "null",
    "true",
    "false",
    "0",
    "1",
    "0.5",
    '"a"',
    '["a"]',
    "[1]",
    '{"1":1}',
    "{}",
    '{"type":"text"}',
)


def number_fields(path: str) -> list[str]:
    """Return the number fields of a body, derived from the schema so that new fields are included."""
    fields = MODELS[path].model_fields.items()
    return [name for name, field in fields if {int, float} & _alternatives(field.annotation)]


def with_field(path: str, name: str, value: str) -> bytes:
    """Return a valid body with one field replaced by the given JSON."""
    rest = {key: given for key, given in GOOD[path].items() if key != name}
    return json.dumps(rest).encode()[:-1] + f'{"," if rest else ""}"{name}":{value}}}'.encode()


class Mutator:
    """Generates bodies with one to three errors each. The same seed gives the same bodies."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self) -> tuple[str, bytes]:
        rng = self._random
        path = rng.choice((CHAT, CHAT, COMPLETIONS, COMPLETIONS, MESSAGES, MESSAGES, RESPONSES, *MODELS))
        names = list(MODELS[path].model_fields)
        written = {name: json.dumps(value) for name, value in GOOD[path].items()}
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            written[rng.choice(names)] = self._strange(path)
        body = "{" + ",".join(f'"{name}":{value}' for name, value in written.items()) + "}"
        return path, self._damaged(body.encode()) if rng.random() < 0.2 else body.encode()

    def _strange(self, path: str) -> str:
        rng = self._random
        if rng.random() < 0.2:  # inside an otherwise valid value
            good = json.dumps(rng.choice([*GOOD[path].values(), {"include_usage": True}, {"1": 1.0}]))
            return re.sub(r'\d+|"\w*"(?!:)|\[|\]', lambda found: rng.choice([found[0], *STRANGE[:12]]), good)
        return rng.choice((*STRANGE, *PLAUSIBLE))

    def _damaged(self, body: bytes) -> bytes:
        rng, kind = self._random, self._random.randrange(4)
        if kind == 0:
            return body[: rng.randrange(len(body))]
        place = rng.randrange(len(body))
        if kind == 1:
            return body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
        if kind == 2:
            return body[:place] + rng.choice((b"\xff", b"\xed\xa0\x80", b"\x00", b'"', b"{")) + body[place:]
        return b'{"prompt":{},' + body[1:]  # a duplicate key: the last one counts


def check_answer(status: int, content: bytes, asked: object) -> None:
    """Check that the response is an answer or a well-formed error, and reveals no internals.

    `asked` is the request, for messages; to check errors of Ollama's API, it is a tuple that begins with the
    path.
    """
    text = content.decode()
    assert 200 <= status < 500, (status, text, asked)
    assert not LEAKS.search(text), (text, asked)
    if text.startswith(("event: message", '{"type":"error"', "event: error", "event: ping")):
        check_anthropic(text, asked)
    elif text.startswith("event: "):
        last = json.loads(text.rstrip("\n").rpartition("data: ")[2])
        assert last["type"] in ("response.completed", "response.incomplete"), (text, asked)
    elif isinstance(asked, tuple) and asked[0].startswith("/api/"):
        check_ollama(status, text, asked)
    else:
        for error in openai_errors(status, text, asked):
            assert set(error) == {"message", "type", "param", "code"}, (text, asked)
            assert error["message"], asked
            assert error["type"], asked
            assert error["code"] != "internal_error", (text, asked)


def openai_errors(status: int, text: str, asked: object) -> list[JsonObject]:
    if text.startswith(("data: ", ": ping")):  # on a slow machine a ping may come before the first event
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]", (text, asked)
        return [json.loads(event)["error"] for event in events if '"error"' in event]
    body = json.loads(text)
    assert (status >= 400) == (body.get("error") is not None), (status, text, asked)
    return [body["error"]] if status >= 400 else []


def check_ollama(status: int, text: str, asked: object) -> None:
    """Check a body, an error or a stream of lines in the form of Ollama's API."""
    *before, last = [json.loads(line) for line in text.split("\n") if line]
    assert not any("error" in line for line in before), (text, asked)
    assert "error" in last or status < 400, (status, text, asked)
    if "error" in last:
        assert set(last) == {"error"}, (text, asked)
        assert isinstance(last["error"], str), (text, asked)
        assert last["error"], asked
        assert "error id" not in last["error"], (text, asked)  # an internal error
        assert before or status >= 400, (status, text, asked)


def check_anthropic(text: str, asked: object) -> None:
    """Check a stream or an error in the form of the Anthropic API."""
    if text.startswith("event: "):
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    else:
        events = [json.loads(text)]
    assert events[-1]["type"] in ("message_stop", "error"), (text, asked)
    for found in [event for event in events if event["type"] == "error"]:
        assert set(found) == {"type", "error", "request_id"}, (text, asked)
        no_threads = "thread is not supported" in found["error"]["message"]
        expected = {"type", "message", "details"} if no_threads else {"type", "message"}
        assert set(found["error"]) == expected, (text, asked)
        assert found["error"]["message"], asked
        assert found["error"]["type"] != "api_error", (text, asked)


def names_field(error: JsonObject | str, *names: str) -> bool:
    """Whether an error names one of the fields, in its message if it has no `param`."""
    if isinstance(error, str):  # of Ollama's API
        return any(name in error for name in names)
    if "param" in error:
        return error["param"] in names
    return any(name in error["message"] for name in names)


def is_finite_json(content: bytes) -> bool:
    return all(math.isfinite(number) for number in _numbers(json.loads(content)))


def _numbers(value: Json) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, float) else []


def _alternatives(annotation: object) -> set[object]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return set(typing.get_args(annotation))
    return {annotation}
