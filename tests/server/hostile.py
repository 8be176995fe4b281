"""Malformed request bodies, and the checks that every answer must pass."""

import json
import math
import random
import re
import types
import typing

import pydantic

from data.json_types import Json, JsonObject
from octavo.server.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODELS: dict[str, type[pydantic.BaseModel]] = {
    CHAT: ChatRequest,
    COMPLETIONS: CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
GOOD: dict[str, JsonObject] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
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
        path = rng.choice((CHAT, CHAT, COMPLETIONS, COMPLETIONS, "/tokenize", "/detokenize"))
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
    """Check that the response is an answer or a well-formed error, and reveals no internals."""
    text = content.decode()
    assert 200 <= status < 500, (status, text, asked)
    assert not LEAKS.search(text), (text, asked)
    if text.startswith(("data: ", ": ping")):  # on a slow machine a ping may come before the first event
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]", (text, asked)
        errors = [json.loads(event)["error"] for event in events if '"error"' in event]
    else:
        body = json.loads(text)
        assert (status >= 400) == ("error" in body), (status, text, asked)
        errors = [body["error"]] if status >= 400 else []
    for error in errors:
        assert set(error) == {"message", "type", "param", "code"}, (text, asked)
        assert error["message"], asked
        assert error["type"], asked
        assert error["code"] != "internal_error", (text, asked)


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
