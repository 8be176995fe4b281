"""10,000 malformed requests mixed with valid ones cause no 5xx, crash or lost block, and reveal no internals.

Most are sent directly to the application, on the real hub, scheduler and engine process, with a model that
computes nothing. Some hundreds are sent over a socket to `octavo serve` on the tiny model. schemathesis
generates requests from the API description and needs 10 to 300 ms for each, so most come from
`hostile.Mutator`, which needs 0.1 ms. `OCTAVO_TEST_FULL=1 pytest -k hostile tests/server` sends 10,000
requests of schemathesis and 220,000 others.
"""

import asyncio
import copy
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode

from data.json_types import Json, JsonObject
from full_size import FULL
from octavo.server.openapi import describe
from patience import HANG_SECONDS
from server.hostile import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    GOOD,
    MESSAGES,
    MODELS,
    NEVER_A_NUMBER,
    STRANGE_NUMBERS,
    Mutator,
    check_answer,
    is_finite_json,
    names_field,
    number_fields,
    with_field,
)
from server.null_bench import Bench, RunNull
from server.process import Server

NUM_MUTATED = 200_000 if FULL else 9_000
NUM_OVER_SOCKETS = 20_000 if FULL else 300
SCHEMATHESIS = {CHAT: 1_000 if FULL else 20, COMPLETIONS: 2_000 if FULL else 40}
SCHEMATHESIS_ELSE = 1_000 if FULL else 20
AT_ONCE = 32
SMALL = {"max_model_len": 256, "step_seconds": 0}  # so that requests without a maximum end soon
VIEW = "/octavo/view"
MEBIBYTE = 1 << 20
LARGEST = (4 if FULL else 1) * MEBIBYTE - 1024

PathAndBody = tuple[str, bytes | None]
Generated: TypeAlias = "Case[Any]"  # of any operation


async def ask_all(bench: Bench, requests: Iterable[PathAndBody]) -> Counter[int]:
    """Send the requests with limited concurrency, check every answer, and count the answers by status."""
    statuses: Counter[int] = Counter()
    waiting = iter(requests)

    async def ask_some() -> None:
        for path, body in waiting:
            answer = await bench.ask(path, body).done()
            check_answer(answer.status, answer.content, (path, body))
            statuses[answer.status] += 1

    await asyncio.gather(*(ask_some() for _ in range(AT_ONCE)))
    return statuses


async def check_unharmed(bench: Bench, pid: int | None) -> None:
    """Check that the engine is the same, all blocks are free, the queue is empty and the server is ready."""
    await bench.until(lambda: bench.supervisor.stats and not bench.supervisor.stats.num_running)
    stats, admission = bench.supervisor.stats, bench.state.admission
    assert stats is not None
    assert bench.supervisor.engine_pid == pid
    assert bench.supervisor.num_restarts == 0
    assert stats.num_waiting == 0
    assert stats.blocks_free + stats.blocks_idle == stats.blocks_total
    assert (bench.state.num_open, admission.num_sequences, admission.num_tokens) == (0, 0, 0)
    assert (await bench.ask("/readyz", None).done()).status == 200


@pytest.mark.usefixtures("untraced")
def test_malformed_bodies(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        pid, started = bench.supervisor.engine_pid, time.perf_counter()
        mutator = Mutator(seed=0)
        statuses = await ask_all(bench, (mutator.next() for _ in range(NUM_MUTATED)))
        await check_unharmed(bench, pid)
        print(f"\n{NUM_MUTATED} bad bodies: {dict(statuses)}, {time.perf_counter() - started:.1f} s")
        assert statuses[400] > NUM_MUTATED / 2, "too few bodies were malformed"
        assert statuses[200] > NUM_MUTATED / 50, "too few bodies passed validation to test the code after it"

    run_null(test, **SMALL)


def cases_of(description: JsonObject, mode: GenerationMode) -> Iterator[Generated]:
    """Generate requests with schemathesis that the description allows or forbids, depending on the mode.

    Only paths, queries and bodies are used, so nothing else may make a request invalid.
    """
    described = copy.deepcopy(description)
    for operation in (one for methods in described["paths"].values() for one in methods.values()):
        parameters = operation.get("parameters", ())
        operation["parameters"] = [one for one in parameters if one["in"] != "header"]
    for result in schemathesis.openapi.from_dict(described).get_all_operations():
        found = result.ok()  # type: ignore[union-attr]
        if mode is GenerationMode.POSITIVE or found.path in MODELS:  # others have no invalid input
            strategy = found.as_strategy(generation_mode=mode)
            yield from examples(strategy, SCHEMATHESIS.get(found.path, SCHEMATHESIS_ELSE))


def examples(strategy: SearchStrategy[Generated], count: int) -> list[Generated]:
    found: list[Generated] = []

    @seed(0)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def collect(case: Generated) -> None:
        found.append(case)

    collect()
    return found


def request_of(case: Generated) -> PathAndBody:
    path = case.formatted_path
    if case.path == VIEW:  # endless unless a count is given
        return f"{path}?{urlencode({'count': 1} | case.query | {'count': 1})}", None
    if case.method != "POST":
        return path, None
    return path, json.dumps(whole(case.body)).encode() if isinstance(case.body, dict | list | str) else b""


def whole(value: Json) -> Json:
    """Convert values that the server rejects. JSON Schema accepts 1.0 as an integer, but no client writes it
    so. The description declares `arguments` as JSON text (`contentMediaType`), which schemathesis ignores."""
    if isinstance(value, dict):
        return {
            key: json.dumps(item) if key == "arguments" and isinstance(item, str) else whole(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value
)
def test_the_server_validates_as_its_description_states(run_null: RunNull, mode: GenerationMode) -> None:
    """The server rejects what it forbids, and of what it allows only what no schema can express."""

    async def test(bench: Bench) -> None:
        pid = bench.supervisor.engine_pid
        description = describe(bench.app, bench.state)
        statuses: dict[str, Counter[int]] = {}
        refusals: Counter[str] = Counter()
        for case in cases_of(description, mode):
            path, body = request_of(case)
            answer = await bench.ask(path, body).done()
            if case.path not in ("/metrics", VIEW):
                check_answer(answer.status, answer.content, (path, body))
            assert str(answer.status) in description["paths"][case.path][case.method.lower()]["responses"]
            statuses.setdefault(case.path, Counter())[answer.status] += 1
            if answer.status == 400:
                refusals[str(answer.error)[:80]] += 1
            if mode is GenerationMode.NEGATIVE:
                assert answer.status in (400, 404, 413), (path, body)  # 413: a large body
        await check_unharmed(bench, pid)
        print(f"\n{mode.value}: {sum(map(Counter.total, statuses.values()))} requests", statuses, refusals)
        if mode is GenerationMode.POSITIVE:
            # A chat with tools, calls and a grammar can be invalid in ways that no schema can express. The
            # examples depend on which modules are loaded, so one endpoint may get few valid ones.
            of_models = sum((statuses[path] for path in MODELS), Counter[int]())
            assert of_models[200] > of_models.total() / 5, statuses
            assert all(statuses[path][200] for path in MODELS), statuses

    run_null(test, **SMALL)


REPORTED_AS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "top_logprobs": "logprobs",
}


def test_every_number_field_with_every_invalid_value(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        pid, num_asked = bench.supervisor.engine_pid, 0
        for path in MODELS:
            for name, value in itertools.product(number_fields(path), (*NEVER_A_NUMBER, *STRANGE_NUMBERS)):
                body = with_field(path, name, value)
                answer = await bench.ask(path, body).done()
                check_answer(answer.status, answer.content, (path, body))
                num_asked += 1
                if value in NEVER_A_NUMBER:
                    assert answer.status == 400, body
                if value == "null":  # equivalent to omitting the field
                    is_required = MODELS[path].model_fields[name].is_required()
                    assert answer.status == (400 if is_required else 200), body
                if answer.status == 200:
                    assert is_finite_json(answer.content)
                elif value[0] not in "NI-19":  # not JSON, or invalid for another reason
                    assert names_field(answer.error, name, REPORTED_AS.get(name, name)), body
        assert num_asked > 500, "too few number fields were found by their types"
        await check_unharmed(bench, pid)

    run_null(test, **SMALL)


def test_requests_supply_variables_but_no_templates(server: Server) -> None:
    """Template syntax in any text stays text, and a field named like a template is a variable."""
    code = "{{ 7 * 7 }}{% for i in range(10**9) %}x{% endfor %}{{ ''.__class__.__mro__ }}"
    message = {"role": "user", "content": code, "name": code, "reasoning_content": code}
    names = ("chat_template", "self", "x", "raise_exception", "bos_token", "loop", "__class__", "range")
    body = {"messages": [message], "max_tokens": 1, "octavo": {"prompt": True}}
    for fields in ({}, {"chat_template": code}, {"chat_template_kwargs": dict.fromkeys(names, code)}):
        answer = server.post(CHAT, body | fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["octavo"]["requests"][0]["prompt"] == f"<|user|>{code}<|end|><|assistant|>"
    deep: Json = code
    for _ in range(900):
        deep = [deep]
    refused = server.post(CHAT, body | {"chat_template_kwargs": {"a": deep}})
    assert refused.status_code == 400
    check_answer(refused.status_code, refused.content, "deep variables")


CAPS: list[tuple[str, JsonObject, JsonObject]] = [
    (CHAT, {"n": 8}, {"n": 9}),
    (MESSAGES, {"stop_sequences": ["a"] * 16}, {"stop_sequences": ["a"] * 17}),
    (MESSAGES, {"stop_sequences": ["é" * 128]}, {"stop_sequences": ["é" * 128 + "a"]}),
    (CHAT, {"stop": ["a"] * 16}, {"stop": ["a"] * 17}),
    (CHAT, {"stop": "é" * 128}, {"stop": "é" * 128 + "a"}),
    (CHAT, {"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}),
    (COMPLETIONS, {"logprobs": 20}, {"logprobs": 21}),
    (COMPLETIONS, {"prompt_logprobs": 20}, {"prompt_logprobs": 21}),
    (COMPLETIONS, {"stop_token_ids": [1] * 1024}, {"stop_token_ids": [1] * 1025}),
    (COMPLETIONS, {"logit_bias": {f"{i:09}": 1 for i in range(260)}}, {"logit_bias": {"260": 1}}),
    (COMPLETIONS, {"prompt": ["a"] * 512}, {"prompt": ["a"] * 513}),
    (COMPLETIONS, {"cache_salt": "s" * 256}, {"cache_salt": "s" * 257}),
    (CHAT, {"priority": 1 << 31}, {"priority": (1 << 31) + 1}),
]


@pytest.mark.parametrize(("path", "limit", "more"), CAPS, ids=lambda value: str(value)[:30])
def test_limits_are_exactly_as_documented(
    server: Server, path: str, limit: JsonObject, more: JsonObject
) -> None:
    assert server.post(path, GOOD[path] | limit).status_code == 200
    refused = server.post(path, GOOD[path] | more)
    assert refused.status_code == 400
    check_answer(refused.status_code, refused.content, more)


def filled(
    start: bytes,
    item: bytes,
    end: bytes,
) -> bytes:
    """Return a body of almost the maximum size, filled with `item`."""
    return start + b",".join([item] * (LARGEST // (len(item) + 1))) + end


LARGE: list[tuple[str, bytes]] = [
    (COMPLETIONS, filled(b'{"prompt":[', b"1", b"]}")),
    (COMPLETIONS, filled(b'{"prompt":[', b'"a"', b"]}")),
    (COMPLETIONS, filled(b'{"prompt":[', b"[1]", b"]}")),
    (COMPLETIONS, filled(b'{"prompt":[', b"[]", b",true]}")),
    (COMPLETIONS, filled(b'{"prompt":[', b"true", b"]}")),
    (COMPLETIONS, filled(b'{"prompt":"a","stop":[', b"1", b"]}")),
    (COMPLETIONS, filled(b'{"prompt":"a","stop_token_ids":[', b"{}", b"]}")),
    (COMPLETIONS, b'{"prompt":"a","n":' + b"9" * MEBIBYTE + b"}"),
    (
        COMPLETIONS,
        b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":""' % i for i in range(LARGEST // 13)) + b"}}",
    ),
    (COMPLETIONS, b'{"prompt":"a","cache_salt":"' + b"x" * LARGEST + b'"}'),
    (CHAT, filled(b'{"messages":[', b"{}", b"]}")),
    (CHAT, filled(b'{"messages":[', b'{"role":"user","content":""}', b"]}")),
    (CHAT, filled(b'{"messages":[{"role":"user","content":[', b"{}", b"]}]}")),
    (CHAT, filled(b'{"messages":[{"role":"user","tool_calls":[', b"{}", b"]}]}")),
    (
        CHAT,
        filled(
            b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":[', b"1", b']},"n":0}'
        ),
    ),
    (MESSAGES, filled(b'{"max_tokens":1,"messages":[', b"{}", b"]}")),
    (MESSAGES, filled(b'{"max_tokens":1,"messages":[', b'{"role":"user","content":""}', b"]}")),
    (MESSAGES, filled(b'{"max_tokens":1,"messages":[{"role":"user","content":[', b"{}", b"]}]}")),
    (
        MESSAGES,
        filled(
            b'{"max_tokens":1,"messages":[{"role":"user","content":[', b'{"type":"text","text":""}', b"1]}]}"
        ),
    ),
    (COUNT_TOKENS, filled(b'{"messages":[{"role":"user","content":"a"}],"system":[', b"{}", b"]}")),
    (COUNT_TOKENS, filled(b'{"messages":[{"role":"user","content":"a"}],"tools":[', b"{}", b"]}")),
    ("/detokenize", filled(b'{"tokens":[', b"1", b",-1]}")),
    ("/detokenize", filled(b'{"tokens":[', b"{}", b"]}")),
]


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_large_invalid_bodies_are_cheap_to_reject(server: Server) -> None:
    """Each is rejected quickly, and without a list of a million errors."""
    headers = {"content-type": "application/json"}
    server.post("/tokenize", {"prompt": 1, "x": "x" * LARGEST})  # part of the baseline
    before = peak_memory(server.process.pid)
    slowest = 0.0
    for path, body in LARGE:
        started = time.monotonic()
        answer = httpx.post(server.url + path, content=body, headers=headers, timeout=HANG_SECONDS)
        slowest = max(slowest, time.monotonic() - started)
        assert answer.status_code == 400, (answer.text[:200], body[:60])
        check_answer(answer.status_code, answer.content, body[:60])
    grown = (peak_memory(server.process.pid) - before) / MEBIBYTE
    print(
        f"\n{len(LARGE)} bodies of {LARGEST >> 10} KiB: slowest {slowest:.2f} s, peak memory +{grown:.0f} MiB"
    )
    # It was once 500 times the body, plus that of earlier requests until the next garbage collection.
    assert grown < 64 * LARGEST / MEBIBYTE


def test_malformed_bodies_over_a_socket(server: Server) -> None:
    """As `test_malformed_bodies`, but through the whole server."""
    pid, mutator = server.engine_pid, Mutator(seed=1)
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as client:
        for _ in range(NUM_OVER_SOCKETS):
            path, body = mutator.next()
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            check_answer(answer.status_code, answer.content, (path, body))
    assert server.engine_pid == pid
    assert server.get("/readyz").status_code == 200
    metrics = server.get("/metrics").text
    for gauge in ("kv_cache_usage_perc", "num_requests_running", "num_requests_queued", "num_tokens_queued"):
        (line,) = (line for line in metrics.splitlines() if line.startswith(f"octavo:{gauge}{{"))
        assert line.endswith(" 0.0"), line
    assert "Traceback" not in server.log


pytestmark = pytest.mark.xdist_group("server")
