"""Limits of the front end: held bytes, connections, JSON structure, blocking of the event loop."""

import asyncio
import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.http.body import MAX_CONTAINERS, parse
from octavo.server.http.budget import SMALL_BYTES, ByteBudget, Holding
from octavo.server.http.connection_limit import MAX_PROBES, ConnectionLimit
from octavo.server.http.errors import ApiError
from octavo.server.http.paced import PIECE_BYTES, PacedResponse
from octavo.server.loop_watch import MAX_SECONDS, LoopWatch
from octavo.server.openai.schema import CompletionRequest

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
        if before + num_bytes <= budget.max_for_one:
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
    budget.open().take(budget.max_for_one)
    with pytest.raises(ApiError, match="busy"):
        budget.open().take(SMALL_BYTES + 1)
    for _ in range((MAX_HELD - budget.max_for_one) // SMALL_BYTES):
        budget.open().take(SMALL_BYTES)


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
