"""What bounds the front end: bytes held, room for connections, the shape of JSON, turns of the event loop."""

import asyncio
import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.http.body import MOST_CONTAINERS, parse
from octavo.server.http.budget import SMALL_BYTES, ByteBudget, Holding
from octavo.server.http.errors import ApiError
from octavo.server.http.paced import PIECE_BYTES, PacedResponse
from octavo.server.http.room import MOST_PROBES, Room
from octavo.server.loop_watch import MOST_SECONDS, LoopWatch
from octavo.server.openai.schema import CompletionRequest

MOST_HELD = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, MOST_HELD) | st.just(-1)), max_size=60))
def test_no_more_bytes_are_held_than_allowed_and_all_are_given_back(moves: list[tuple[int, int]]) -> None:
    """A move is a request and the bytes it takes; -1: it is over."""
    budget = ByteBudget(MOST_HELD)
    holdings: dict[int, Holding] = {}
    for number, num_bytes in moves:
        if num_bytes < 0:
            holdings.pop(number, budget.open()).close()
            continue
        holding = holdings.setdefault(number, budget.open())
        before = budget.num_held
        if before + num_bytes <= budget.most_for_one:
            holding.take(num_bytes)
        else:  # it may be small
            with contextlib.suppress(ApiError):
                holding.take(num_bytes)
        assert budget.num_held == sum(one.num_bytes for one in holdings.values()) <= MOST_HELD
    for holding in holdings.values():
        holding.close()
    assert budget.num_held == 0


def test_small_requests_are_let_in_when_large_ones_have_taken_all_they_may() -> None:
    budget = ByteBudget(MOST_HELD)
    budget.open().take(budget.most_for_one)
    with pytest.raises(ApiError, match="busy"):
        budget.open().take(SMALL_BYTES + 1)
    for _ in range((MOST_HELD - budget.most_for_one) // SMALL_BYTES):
        budget.open().take(SMALL_BYTES)


def test_who_has_been_idle_for_longest_makes_way_and_probes_have_room_of_their_own() -> None:
    sent_away: list[str] = []
    room: Room[str] = Room(3, sent_away.append)
    for number, guest in enumerate("abc", start=1):
        assert room.admit(guest, number)
    room.note_busy("a")
    room.note_idle("a")  # it has had its answer: now b is idle for longest
    assert room.admit("d", 4)
    assert sent_away == ["b"]
    for guest in "acd":
        room.note_busy(guest)
    assert not room.admit("e", 4)
    assert room.takes_probes(3 + MOST_PROBES)
    assert not room.takes_probes(3 + MOST_PROBES + 1)


@pytest.mark.parametrize(
    ("part", "most"), [("[]", MOST_CONTAINERS), ("{}", MOST_CONTAINERS), ('{"a":1}', MOST_CONTAINERS)]
)
def test_json_of_many_parts_is_refused_before_it_is_decoded(part: str, most: int) -> None:
    def body(num_parts: int) -> bytes:
        return b'{"prompt": "x", "unknown": [' + ",".join([part] * num_parts).encode() + b"]}"

    parse(body(most - 2), CompletionRequest)
    with pytest.raises(ApiError, match="too many objects"):
        parse(body(most), CompletionRequest)


@given(st.text(alphabet='[]{},:"\\ab\n', max_size=40))
def test_what_is_written_in_a_text_is_no_part_of_the_json(words: str) -> None:
    text = words * (MOST_CONTAINERS // max(1, len(words))) + "[" * MOST_CONTAINERS
    assert parse(json.dumps({"prompt": text}).encode(), CompletionRequest).prompt == text


def test_a_large_answer_is_handed_on_in_pieces() -> None:
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


def test_a_turn_of_the_event_loop_that_takes_long_is_seen() -> None:
    async def main() -> None:
        watch = LoopWatch()
        watch.start()
        await asyncio.sleep(0.1)
        idle = watch.longest_cpu
        until = time.thread_time() + 2 * MOST_SECONDS
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.1)
        watch.stop()
        assert idle < 2 * MOST_SECONDS <= watch.longest_cpu

    asyncio.run(main())
