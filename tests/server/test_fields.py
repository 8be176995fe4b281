"""Every request field, sent with OpenAI's clients for Python (sync and async) and Node, streamed and not.

All of them get the same answer, and the answer shows that the field had its effect, or no effect if it should
have none.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from data.json_types import Json, JsonObject
from octavo.server.openai.schema import ChatRequest, CompletionRequest
from server.fields import BASE, CASES, CHAT, COMPLETIONS, Answer, Case, Fields, streamed, whole
from server.node import run_node
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")

# Fields that select the mode itself, and the tests that cover them.
ELSEWHERE = {
    "stream": "test_a_stream_concatenates_to_the_whole_answer",
    "stream_options": "test_continuous_usage",
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Clients:
    waiting: openai.OpenAI
    not_waiting: openai.AsyncOpenAI
    runner: asyncio.Runner


@pytest.fixture(scope="module")
def clients(server: Server) -> Iterator[Clients]:
    with asyncio.Runner() as runner:
        made = Clients(server.client(), server.async_client(), runner)
        yield made
        runner.run(made.not_waiting.close())
        made.waiting.close()


def as_keywords(create: Callable[..., object], fields: Fields) -> Fields:
    """Move fields without a client parameter to `extra_body`. (The client's `timeout` is not the field.)"""
    known = set(inspect.signature(create).parameters) - {"timeout"}
    extra = {name: value for name, value in fields.items() if name not in known}
    return {name: value for name, value in fields.items() if name in known} | {"extra_body": extra}


def error_of(error: openai.APIStatusError) -> Answer:
    return {"error": {"status": error.status_code, "param": error.param}}


def ask(clients: Clients, endpoint: str, fields: Fields, *, stream: bool, waits: bool) -> Answer:
    client: Any = clients.waiting if waits else clients.not_waiting
    create = (client.chat.completions if endpoint == CHAT else client.completions).create
    keywords = as_keywords(create, BASE[endpoint] | fields | (USAGE if stream else {}))

    async def at_once() -> Answer:
        answer = await create(**keywords)
        if stream:
            return streamed(endpoint, [chunk.to_dict() async for chunk in answer])
        return whole(endpoint, answer.to_dict())

    try:
        if not waits:
            return clients.runner.run(at_once())
        answer = create(**keywords)
        if stream:
            return streamed(endpoint, [chunk.to_dict() for chunk in answer])
        return whole(endpoint, answer.to_dict())
    except openai.APIStatusError as error:
        return error_of(error)


def change_of(case: Case, plain: Answer) -> Fields:
    return case.beside | (case.change(plain) if callable(case.change) else case.change)


def understood(endpoint: str, seen: Json) -> Answer:
    """Convert one answer that the Node program printed."""
    if "chunks" in seen:
        return streamed(endpoint, seen["chunks"])
    return whole(endpoint, seen["whole"]) if "whole" in seen else seen


NAMED = [
    pytest.param(endpoint, case, id=f"{endpoint}-{case.name}-{number}")
    for endpoint, cases in CASES.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("endpoint", "case"), NAMED)
def test_a_field_has_the_same_effect_in_every_client_and_mode(
    clients: Clients, endpoint: str, case: Case
) -> None:
    plain = ask(clients, endpoint, case.beside, stream=False, waits=True)
    fields = change_of(case, plain)
    answer = ask(clients, endpoint, fields, stream=False, waits=True)
    assert case.has_effect(answer, plain), (answer, plain)
    assert ask(clients, endpoint, fields, stream=False, waits=False) == answer
    in_streams = answer if case.streams else {"error": {"status": 400, "param": case.name}}
    assert ask(clients, endpoint, fields, stream=True, waits=True) == in_streams
    assert ask(clients, endpoint, fields, stream=True, waits=False) == in_streams


@pytest.mark.parametrize(("endpoint", "schema"), [(CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)])
def test_every_field_has_a_case(endpoint: str, schema: type[BaseModel]) -> None:
    tested = {case.name for case in CASES[endpoint]} | set(ELSEWHERE)
    assert set(schema.model_fields) - tested == set()
    there = (Path(__file__).parent / "test_chat.py").read_text()
    assert all(f"def {name}(" in there for name in ELSEWHERE.values())


def test_the_node_client_gets_the_same_answers(clients: Clients, server: Server, node_folder: Path) -> None:
    """One program runs all cases, each as a whole answer and as a stream."""
    asked: list[JsonObject] = []
    expected: list[Answer] = []
    for endpoint, cases in CASES.items():
        for case in cases:
            fields = change_of(case, ask(clients, endpoint, case.beside, stream=False, waits=True))
            for more in ({}, USAGE):
                asked.append({"endpoint": endpoint, "body": BASE[endpoint] | fields | more})
                expected.append(ask(clients, endpoint, fields, stream=bool(more), waits=True))
    answers = run_node("fields.mjs", node_folder, server.url, asked)
    for question, seen, answer in zip(asked, answers, expected, strict=True):
        assert understood(question["endpoint"], seen) == answer, question
