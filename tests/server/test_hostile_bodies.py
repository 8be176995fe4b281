"""10,000 bad requests, and good ones between: no 5xx, no death, no page lost, nothing of the inside shown.

Most go straight to the application, on the real hub, scheduler and engine process, with a model that
computes nothing; some hundreds go over a socket to `octavo serve` on the tiny model. schemathesis makes its
requests from our own description of the API, at 10 to 300 ms for each, so that most are made by
`hostile.Mutator`, which needs a tenth of one. `OCTAVO_TEST_FULL=1 pytest -k hostile tests/server` is
10,000 of schemathesis' and 220,000 of the others.
"""

import asyncio
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
    GOOD,
    MODELS,
    NEVER_A_NUMBER,
    STRANGE_NUMBERS,
    Mutator,
    check_answer,
    is_finite_json,
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
SMALL = {"max_model_len": 256, "step_seconds": 0}  # so that what is asked without an end ends soon
VIEW = "/octavo/view"
MEBIBYTE = 1 << 20
LARGEST = (4 if FULL else 1) * MEBIBYTE - 1024

Asked = tuple[str, bytes | None]
Generated: TypeAlias = "Case[Any]"  # of any operation


async def ask_all(bench: Bench, requests: Iterable[Asked]) -> Counter[int]:
    """So many at a time; every answer is checked. How many there were, by status."""
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
    """The same engine, all pages back, nobody in the queue, ready for more."""
    await bench.until(lambda: bench.supervisor.stats and not bench.supervisor.stats.num_running)
    stats, admission = bench.supervisor.stats, bench.state.admission
    assert stats is not None
    assert bench.supervisor.engine_pid == pid
    assert bench.supervisor.num_restarts == 0
    assert stats.num_waiting == 0
    assert stats.pages_free + stats.pages_idle == stats.pages_total
    assert (bench.state.num_open, admission.num_sequences, admission.num_tokens) == (0, 0, 0)
    assert (await bench.ask("/readyz", None).done()).status == 200


@pytest.mark.usefixtures("untraced")
def test_bodies_with_anything_wrong_in_them(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        pid, started = bench.supervisor.engine_pid, time.perf_counter()
        mutator = Mutator(seed=0)
        statuses = await ask_all(bench, (mutator.next() for _ in range(NUM_MUTATED)))
        await check_unharmed(bench, pid)
        print(f"\n{NUM_MUTATED} bad bodies: {dict(statuses)}, {time.perf_counter() - started:.1f} s")
        assert statuses[400] > NUM_MUTATED / 2, "they were not bad"
        assert statuses[200] > NUM_MUTATED / 50, "none got past the door, so nothing was tried behind it"

    run_null(test, **SMALL)


def cases_of(description: JsonObject, mode: GenerationMode) -> Iterator[Generated]:
    """schemathesis' requests, good or bad in the eyes of the description."""
    for result in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]
        if mode is GenerationMode.POSITIVE or operation.path in MODELS:  # in others, nothing can be wrong
            strategy = operation.as_strategy(generation_mode=mode)
            yield from examples(strategy, SCHEMATHESIS.get(operation.path, SCHEMATHESIS_ELSE))


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


def request_of(case: Generated) -> Asked:
    path = case.formatted_path
    if case.path == VIEW:  # which ends only if that is asked for
        return f"{path}?{urlencode({'count': 1} | case.query | {'count': 1})}", None
    if case.method != "POST":
        return path, None
    return path, json.dumps(whole(case.body)).encode() if isinstance(case.body, dict | list | str) else b""


def whole(value: Json) -> Json:
    """JSON Schema takes 1.0 for a whole number. We do not, and there is no client that writes it so. The text
    of arguments is described as JSON (`contentMediaType`), which schemathesis does not make."""
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
def test_what_the_description_of_the_api_says_is_so(run_null: RunNull, mode: GenerationMode) -> None:
    """What it calls wrong is refused; what it calls right is refused only for what no schema can say."""

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
                refusals[answer.error["message"][:60]] += 1
            if mode is GenerationMode.NEGATIVE:
                assert answer.status in (400, 404, 413), (path, body)  # 413: to be too long takes much text
        await check_unharmed(bench, pid)
        print(f"\n{mode.value}: {sum(map(Counter.total, statuses.values()))} requests", statuses, refusals)
        if mode is GenerationMode.POSITIVE:
            # A chat with tools, calls and a grammar has many ways to be wrong that no schema can say. What is
            # generated depends on which modules are loaded, so of one endpoint few may be right.
            of_models = sum((statuses[path] for path in MODELS), Counter[int]())
            assert of_models[200] > of_models.total() / 5, statuses
            assert all(statuses[path][200] for path in MODELS), statuses

    run_null(test, **SMALL)


SAID_AS = {"max_completion_tokens": "max_tokens", "top_logprobs": "logprobs"}


def test_every_number_with_every_value_that_is_none(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        pid, num_asked = bench.supervisor.engine_pid, 0
        for path in MODELS:
            for name, value in itertools.product(number_fields(path), (*NEVER_A_NUMBER, *STRANGE_NUMBERS)):
                body = with_field(path, name, value)
                answer = await bench.ask(path, body).done()
                check_answer(answer.status, answer.content, body)
                num_asked += 1
                if value in NEVER_A_NUMBER:
                    assert answer.status == 400, body
                if value == "null":  # the same as leaving it out
                    assert answer.status == 200, body
                if answer.status == 200:
                    assert is_finite_json(answer.content)
                elif value[0] not in "NI-19":  # those are no JSON, or not for this field alone
                    assert answer.error["param"] in (name, SAID_AS.get(name)), body
        assert num_asked > 500, "fields are found by their types: is that still so?"
        await check_unharmed(bench, pid)

    run_null(test, **SMALL)


def test_requests_bring_variables_and_no_templates(server: Server) -> None:
    """What looks like a template is text, wherever it stands, and what is called one is a variable."""
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


@pytest.mark.parametrize(("path", "most", "more"), CAPS, ids=lambda value: str(value)[:30])
def test_caps_are_where_they_are_said_to_be(
    server: Server, path: str, most: JsonObject, more: JsonObject
) -> None:
    assert server.post(path, GOOD[path] | most).status_code == 200
    refused = server.post(path, GOOD[path] | more)
    assert refused.status_code == 400
    check_answer(refused.status_code, refused.content, more)


def filled(
    start: bytes,
    item: bytes,
    end: bytes,
) -> bytes:
    """A body of nearly the largest size, full of `item`."""
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
    ("/detokenize", filled(b'{"tokens":[', b"1", b",-1]}")),
    ("/detokenize", filled(b'{"tokens":[', b"{}", b"]}")),
]


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_large_bodies_full_of_faults_cost_little(server: Server) -> None:
    """Each in a moment, and without making a list of a million complaints."""
    headers = {"content-type": "application/json"}
    server.post("/tokenize", {"prompt": 1, "x": "x" * LARGEST})  # what one large body takes
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
    # It was 500 times a body, and those of earlier requests beside, until somebody collected garbage.
    assert grown < 64 * LARGEST / MEBIBYTE


def test_bad_bodies_over_a_socket(server: Server) -> None:
    """The same as above, through everything there is."""
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
