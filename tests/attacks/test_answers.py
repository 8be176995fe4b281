"""Memory for large and for unread answers is bounded, like memory for bodies."""

import contextlib
import json

import pytest

from attacks.conftest import StartAttacked
from attacks.crowds import at_once, send
from attacks.neighbour import AUTHORIZATION, beside, eventually
from data.json_types import JsonObject
from server.hostile import COMPLETIONS
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

# On a slow machine, answers must not be given up before there are enough of them.
HELD = ("--max-held", "8MiB", "--stalled-timeout", "3600")
LOOKED_AT: JsonObject = {"prompt": "a b c d " * 8192, "return_token_strs": True}
NUM_UNREAD = 32  # answers of 0.5 MiB
IDS = [(7919 * index) % 256 for index in range(4000)]


def test_unread_tokens_are_bounded(start: StartAttacked) -> None:
    """Requests and answers share one limit. When the clients disconnect, the memory is available again."""
    server = start(*HELD)
    with beside(server) as seen, contextlib.ExitStack() as connections:
        for _ in range(NUM_UNREAD):
            connections.enter_context(send(server, LOOKED_AT, "/tokenize"))
        assert eventually(lambda: server.post("/tokenize", LOOKED_AT, AUTHORIZATION).status_code == 429)
        answered = len(seen.answers)
        assert eventually(lambda: len(seen.answers) > answered + 1)
    assert eventually(lambda: server.post("/tokenize", LOOKED_AT, AUTHORIZATION).status_code == 200)
    assert "Traceback" not in server.log


def test_logprobs_of_long_prompts_are_bounded(server: Server) -> None:
    """One answer contains hundreds of thousands of logprobs."""
    body: JsonObject = {
        "prompt": [IDS[index:] + IDS[:index] for index in range(4)],
        "max_tokens": 1,
        "prompt_logprobs": 20,
    }
    with beside(server), at_once(server, [body]) as statuses:
        pass
    assert set(statuses.values()) == {200}
    answer = server.post(COMPLETIONS, body, AUTHORIZATION)
    assert answer.status_code == 200, answer.text[:500]
    choices = json.loads(answer.content)["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [len(IDS)] * 4


def test_unread_logprobs_are_bounded(server: Server) -> None:
    body: JsonObject = {"prompt": IDS, "max_tokens": 1, "prompt_logprobs": 20}
    with beside(server) as seen, contextlib.ExitStack() as connections:
        for _ in range(6):
            connections.enter_context(send(server, body))
        answered = len(seen.answers)
        assert eventually(lambda: len(seen.answers) > answered + 4)
        assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, AUTHORIZATION).status_code == 200
    assert eventually(lambda: server.post(COMPLETIONS, body, AUTHORIZATION).status_code == 200)
