"""Grammars that are slow to compile, to mask or to replay delay only their own requests."""

import re

import pytest

from attacks.conftest import StartAttacked
from attacks.crowds import at_once
from attacks.neighbour import AUTHORIZATION, beside, eventually
from data.json_types import JsonObject
from server.hostile import COMPLETIONS
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

NUM_SCHEMAS = 24
NUM_PROPERTIES = 60  # an eighth of what is too complex, because that limit is CPU time
NUM_RULES = 250
NUM_PREEMPTIONS = 5
SLOW = (
    "start: (any)*\nany: "
    + " | ".join(f"r{number}" for number in range(NUM_RULES))
    + "".join(f"\nr{number}: /[a-z ]{{1,{number + 2}}}/" for number in range(NUM_RULES))
)


def large(number: int, max_tokens: int) -> JsonObject:
    properties: JsonObject = {
        f"p{index}": {"type": "string", "maxLength": 100} for index in range(NUM_PROPERTIES)
    }
    schema: JsonObject = {
        "type": "object",
        "properties": properties | {f"q{number}": {"type": "string"}},
        "additionalProperties": False,
    }
    return {"prompt": "x", "max_tokens": max_tokens, "structured_outputs": {"json": schema}}


def slow(number: int, max_tokens: int) -> JsonObject:
    return {
        "prompt": f"write {number}",
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "seed": number,
        "structured_outputs": {"grammar": SLOW},
    }


def test_large_schemas_in_sequence_and_concurrently(server: Server) -> None:
    with beside(server):
        for number in range(NUM_SCHEMAS):
            answer = server.post(COMPLETIONS, large(number, 1), AUTHORIZATION)
            assert answer.status_code == 200, answer.text
        with at_once(server, [large(number, 2) for number in range(NUM_SCHEMAS)]) as statuses:
            pass
    assert set(statuses.values()) == {200}


def test_slow_masks(server: Server) -> None:
    with beside(server), at_once(server, [slow(number, 20) | {"n": 8} for number in range(3)]) as statuses:
        pass
    assert set(statuses.values()) == {200}


def num_preemptions(server: Server) -> int:
    metrics = server.get("/metrics", AUTHORIZATION).text
    found = re.search(r"^octavo:num_preemptions_total\{[^}]*\} (\S+)", metrics, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_preempted_grammars(start: StartAttacked) -> None:
    """A resumed grammar is advanced through the tokens so far. The neighbour keeps one of six slots."""
    server = start("--max-running", "6")
    engine = server.engine_pid
    urgent: JsonObject = {"prompt": "u", "max_tokens": 2, "priority": -5, "ignore_eos": True, "n": 4}
    patient = [slow(number, 200) | {"priority": 1000} for number in range(4)]

    def preempt() -> bool:
        """Return whether enough sequences were preempted: the number depends on timing."""
        with at_once(server, patient) as statuses:
            while len(statuses) < len(patient) and num_preemptions(server) < NUM_PREEMPTIONS:
                assert server.post(COMPLETIONS, urgent, AUTHORIZATION).status_code == 200
        assert set(statuses.values()) == {200}
        return num_preemptions(server) >= NUM_PREEMPTIONS

    with beside(server):
        assert eventually(preempt)
    assert server.engine_pid == engine
