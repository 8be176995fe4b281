"""Limits of the front end: held bytes, connections, JSON structure, blocking of the event loop."""

import asyncio
import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.fairness.tenant import Tenant
from octavo.fairness.turns import FairTurns
from octavo.server.http.body import MAX_CONTAINERS, parse
from octavo.server.http.budget import SMALL_BYTES, ByteBudget, Holding
from octavo.server.http.connection_limit import MAX_PROBES, ConnectionLimit
from octavo.server.http.errors import ApiError
from octavo.server.http.paced import PIECE_BYTES, PacedResponse
from octavo.server.loop_watch import MAX_SECONDS, LoopWatch
from octavo.server.openai.schema import CompletionRequest
from unit.fairness.crowd import Clock, tenants

MAX_HELD = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, MAX_HELD) | st.just(-1)), max_size=60))
def test_held_bytes_stay_within_the_limit_and_are_all_released(moves: list[tuple[int, int]]) -> None:
    """A move is a request and the bytes that it takes; -1 ends the request."""
    budget = ByteBudget(MAX_HELD)
    holdings: dict[int, Holding] = {}
    for number, num_bytes in moves:
        if num_bytes < 0:
            holdings.pop(number, budget.open()).close()
            continue
        holding = holdings.setdefault(number, budget.open())
        before = budget.num_held
        if before + num_bytes <= budget.max_for_one():
            holding.take(num_bytes)
        else:  # small requests have a reserve
            with contextlib.suppress(ApiError):
                holding.take(num_bytes)
        assert budget.num_held == sum(one.num_bytes for one in holdings.values()) <= MAX_HELD
    for holding in holdings.values():
        holding.close()
    assert budget.num_held == 0


def test_small_requests_are_accepted_when_large_ones_fill_their_share() -> None:
    budget = ByteBudget(MAX_HELD)
    budget.open().take(budget.max_for_one())
    with pytest.raises(ApiError, match="busy") as rejected:
        budget.open().take(SMALL_BYTES + 1)
    assert (rejected.value.status, rejected.value.code) == (429, "too_many_bytes")
    assert rejected.value.kind == "rate_limit_error"
    assert int(rejected.value.headers["retry-after"]) >= 1
    for _ in range((MAX_HELD - budget.max_for_one()) // SMALL_BYTES):
        budget.open().take(SMALL_BYTES)


BYTES = st.integers(0, MAX_HELD) | st.integers(0, SMALL_BYTES) | st.just(-1)


@given(
    st.lists(st.floats(0.1, 4), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 9), BYTES), max_size=60),
)
def test_every_tenant_can_use_its_part_of_the_bytes(
    weights: list[float], moves: list[tuple[int, int]]
) -> None:
    crowd, budget = tenants(*weights), ByteBudget(MAX_HELD)
    holdings: dict[int, Holding] = {}
    for number, num_bytes in moves:
        if num_bytes < 0:
            holdings.pop(number, budget.open()).close()
            continue
        holding = holdings.setdefault(number, budget.open())
        holding.tenant = crowd[number % len(crowd)]
        with contextlib.suppress(ApiError):
            holding.take(num_bytes)
        assert budget.num_held == sum(one.num_bytes for one in holdings.values()) <= MAX_HELD
        for tenant in crowd:
            used = sum(one.num_bytes for one in holdings.values() if one.tenant == tenant)
            part = int(tenant.fraction * (MAX_HELD // 2))
            if used < part:
                rest = budget.open()
                rest.tenant = tenant
                rest.take(part - used)
                assert budget.num_held <= MAX_HELD
                rest.close()
    for holding in holdings.values():
        holding.close()
    assert budget.num_held == 0


def test_small_requests_of_one_tenant_leave_another_its_part_for_a_large_one() -> None:
    flooding, other = tenants(1, 1)
    budget = ByteBudget(MAX_HELD)
    for _ in range(MAX_HELD * 3 // 4 // SMALL_BYTES):
        small = budget.open()
        small.tenant = flooding
        small.take(SMALL_BYTES)
    rejected = budget.open()
    rejected.tenant = flooding
    with pytest.raises(ApiError, match="of this key"):
        rejected.take(1)
    large = budget.open()
    large.tenant = other
    large.take(MAX_HELD // 4)
    assert budget.num_held == MAX_HELD


def test_a_request_that_can_never_fit_is_not_asked_to_retry() -> None:
    """With keys, one request may need less than without, because the parts of the others stay free."""
    tenant, _ = tenants(1, 3)
    budget = ByteBudget(MAX_HELD)
    holding = budget.open()
    holding.tenant = tenant
    with pytest.raises(ApiError) as rejected:
        holding.take(budget.max_for_one(tenant) + 1)
    assert rejected.value.status == 413
    holding.take(budget.max_for_one(tenant))
    assert budget.max_for_one(tenant) < budget.max_for_one()


def test_large_bodies_of_one_tenant_delay_another_by_one_body() -> None:
    flooding, other = tenants(1, 1)
    budget, clock, order = ByteBudget(MAX_HELD), Clock(), list[str]()
    budget.turns = FairTurns(clock)

    async def parse_body(tenant: Tenant) -> None:
        holding = budget.open()
        holding.tenant = tenant
        async with holding.turn():
            order.append(tenant.name)
            clock.now += 0.1

    async def main() -> None:
        await asyncio.gather(*(parse_body(tenant) for tenant in [flooding] * 10 + [other]))

    asyncio.run(main())
    assert order.index(other.name) == 1


def test_the_longest_idle_connection_is_replaced_and_probes_have_a_reserve() -> None:
    replaced: list[str] = []
    connection_limit: ConnectionLimit[str] = ConnectionLimit(3, replaced.append)
    for number, name in enumerate("abc", start=1):
        assert connection_limit.admit(name, number)
    connection_limit.note_busy("a")
    connection_limit.note_idle("a")  # its request finished, so b has been idle longest
    assert connection_limit.admit("d", 4)
    assert replaced == ["b"]
    for name in "acd":
        connection_limit.note_busy(name)
    assert not connection_limit.admit("e", 4)
    assert connection_limit.admits_probes(3 + MAX_PROBES)
    assert not connection_limit.admits_probes(3 + MAX_PROBES + 1)


@pytest.mark.parametrize(
    ("part", "limit"), [("[]", MAX_CONTAINERS), ("{}", MAX_CONTAINERS), ('{"a":1}', MAX_CONTAINERS)]
)
def test_json_with_too_many_parts_is_rejected_before_decoding(part: str, limit: int) -> None:
    def body(num_parts: int) -> bytes:
        return b'{"prompt": "x", "unknown": [' + ",".join([part] * num_parts).encode() + b"]}"

    parse(body(limit - 2), CompletionRequest)
    with pytest.raises(ApiError, match="too many objects"):
        parse(body(limit), CompletionRequest)


@given(st.text(alphabet='[]{},:"\\ab\n', max_size=40))
def test_contents_of_strings_do_not_count_as_json_parts(words: str) -> None:
    text = words * (MAX_CONTAINERS // max(1, len(words))) + "[" * MAX_CONTAINERS
    assert parse(json.dumps({"prompt": text}).encode(), CompletionRequest).prompt == text


def test_a_large_answer_is_sent_in_pieces() -> None:
    sent: list[bytes] = []
    is_last: list[bool] = []

    async def send(message: "dict[str, object]") -> None:
        if message["type"] == "http.response.body":
            assert isinstance(message["body"], bytes)
            sent.append(message["body"])
            is_last.append(not message["more_body"])

    content = bytes(range(256)) * 1024
    for body in (content, content[:-1], b"{}"):
        sent.clear()
        is_last.clear()
        asyncio.run(PacedResponse(body)({"type": "http"}, None, send))  # type: ignore[arg-type]
        assert b"".join(sent) == body
        assert max(map(len, sent)) <= PIECE_BYTES
        assert is_last == [False] * (len(sent) - 1) + [True]


def test_a_blocked_event_loop_is_detected() -> None:
    async def main() -> None:
        watch = LoopWatch()
        watch.start()
        await asyncio.sleep(0.1)
        idle = watch.longest_cpu
        until = time.thread_time() + 2 * MAX_SECONDS
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.1)
        watch.stop()
        assert idle < 2 * MAX_SECONDS <= watch.longest_cpu

    asyncio.run(main())
