"""Requests that repeat an Idempotency-Key: computed once, kept within bounds, bound to the API key."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from data.json_types import Json
from octavo.frontend.text_model import TextModel
from octavo.protocol import FinishReason
from octavo.server.kept_answers import ENTRY_BYTES, KEPT_SECONDS, KeptAnswers
from server.exchange import Exchange
from server.held_engine import HeldBench

KEY = "3f0c9a1e"
BODY: dict[str, Json] = {"prompt": "ab", "max_tokens": 8}
STREAM: dict[str, Json] = BODY | {"stream": True}

RunHeld = Callable[..., None]


@pytest.fixture
def run_held(tiny_model: TextModel, tmp_path: Path) -> RunHeld:
    def run(
        test: Callable[[HeldBench], Awaitable[None]], key_file: str | None = None, **options: int
    ) -> None:
        async def main() -> None:
            path = None
            if key_file is not None:
                path = tmp_path / "keys"
                path.write_text(key_file)
            bench = HeldBench(tiny_model, path, **options)
            await test(bench)
            await bench.until(lambda: bench.is_clean)
            bench.state.close()

        asyncio.run(main())

    return run


async def finished(bench: HeldBench, asked: Exchange, text: str = "xyz", request: int = -1) -> Exchange:
    """Answer a request of the engine; by default, the last one."""
    bench.say(text, request=request, finish=FinishReason.LENGTH)
    return await asked.done()


def is_replayed(asked: Exchange) -> bool:
    return asked.headers.get("idempotency-replayed") == "true"


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_repeated_requests_are_computed_once(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        first = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(1)
        bench.say("x")
        during = [bench.ask(body | {"user": str(index)}, idempotency_key=KEY) for index in range(3)]
        await bench.until(lambda: bench.state.kept_answers.num_followers == 3)
        if "stream" in body:
            await bench.until(lambda: all(one.content for one in during))  # before the answer is complete
        answer = (await finished(bench, first, "yz")).content
        after = bench.ask(body, idempotency_key=KEY)
        for asked in (*during, after):
            await asked.done()
            assert (asked.status, asked.content, is_replayed(asked)) == (200, answer, True)
            assert asked.headers["content-type"] == first.headers["content-type"]
        assert b"x" in answer
        assert not is_replayed(first)
        assert len(bench.channel.requests) == 1

    run_held(test)


def test_the_key_of_another_body_is_rejected(run_held: RunHeld) -> None:
    async def test(bench: HeldBench) -> None:
        first = bench.ask(BODY, idempotency_key=KEY)
        await bench.until_asked(1)
        for body in (BODY | {"prompt": "ac"}, BODY | {"seed": 1}, STREAM):
            other = await bench.ask(body, idempotency_key=KEY).done()
            assert (other.status, other.error["code"]) == (409, "idempotency_key_reused")
        await finished(bench, first)
        chat = {"messages": [{"role": "user", "content": "ab"}]}
        assert (await bench.ask(chat, "/v1/chat/completions", idempotency_key=KEY).done()).status == 409
        for key in ("", "x" * 256, "\t", "\u00e9"):
            assert (await bench.ask(BODY, idempotency_key=key).done()).status == 400
        assert len(bench.channel.requests) == 1

    run_held(test)


def test_api_keys_do_not_share_keys(run_held: RunHeld) -> None:
    async def test(bench: HeldBench) -> None:
        alice, bob = "Bearer sk-alice-1", "Bearer sk-bob-0001"
        first = bench.ask(BODY, authorization=alice, idempotency_key=KEY)
        await bench.until_asked(1)
        other = bench.ask(BODY | {"prompt": "cd"}, authorization=bob, idempotency_key=KEY)
        await bench.until_asked(2)
        answers = [await finished(bench, asked, request=index) for index, asked in enumerate((first, other))]
        assert answers[0].content != answers[1].content
        again = await bench.ask(BODY, authorization=alice, idempotency_key=KEY).done()
        assert again.content == answers[0].content

    run_held(test, key_file="alice sk-alice-1\nbob sk-bob-0001\n")


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_a_request_that_others_follow_continues_without_its_client(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        first = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(1)
        bench.say("x")
        second, third = [bench.ask(body, idempotency_key=KEY) for _ in range(2)]
        await bench.until(lambda: bench.state.kept_answers.num_followers == 2)
        first.disconnect()
        third.disconnect()
        await third.done()
        await bench.until(lambda: bench.state.kept_answers.num_followers == 1)
        assert not bench.channel.aborts
        bench.say("yz", finish=FinishReason.LENGTH)
        await second.done()
        await first.done()
        assert second.status == 200
        assert len(bench.channel.requests) == 1

    run_held(test)


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_a_request_without_clients_is_aborted_and_forgotten(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        clients = [bench.ask(body, idempotency_key=KEY)]
        await bench.until_asked(1)
        bench.say("x")
        clients.append(bench.ask(body, idempotency_key=KEY))
        await bench.until(lambda: bench.state.kept_answers.num_followers)
        for client in clients:
            client.disconnect()
        for client in clients:
            await client.done()
        await bench.until(lambda: bench.channel.aborts)
        assert len(bench.state.kept_answers) == 0
        bench.say("", finish=FinishReason.ABORT)
        again = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(2)
        await finished(bench, again)
        assert not is_replayed(again)

    run_held(test)


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_failures_are_not_kept(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        assert (await bench.ask(body | {"prompt": []}, idempotency_key=KEY).done()).status == 400
        bench.state.is_draining = True
        assert (await bench.ask(body, idempotency_key=KEY).done()).status == 503
        bench.state.is_draining = False
        first = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(1)
        follower = bench.ask(body, idempotency_key=KEY)
        await bench.until(lambda: bench.state.kept_answers.num_followers)
        bench.say("", finish=FinishReason.DEADLINE)
        await first.done()
        assert b"deadline_exceeded" in first.content
        if "stream" in body:
            assert (await follower.done()).content == first.content  # it had begun to send the stream
            follower = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(2)
        await finished(bench, follower)
        assert (follower.status, is_replayed(follower)) == (200, False)

    run_held(test)


def test_every_server_gives_the_same_answer_to_a_key(run_held: RunHeld) -> None:
    """Nothing is kept here. Without a seed in the body, the seed and the response id depend on the key."""
    seen: list[tuple[int | None, str]] = []

    async def test(bench: HeldBench) -> None:
        for key in (KEY, KEY, "another key"):
            asked = bench.ask(BODY, idempotency_key=key)
            await bench.until_asked(len(bench.channel.requests) + 1)
            await finished(bench, asked)
            seen.append((bench.channel.requests[-1].params.seed, json.loads(asked.content)["id"]))

    for _ in range(2):
        run_held(test, max_kept_answers=0)
    assert len(set(seen)) == 2
    assert seen[:3] == seen[3:]
    assert seen[0] == seen[1] != seen[2]


def test_an_answer_that_is_too_large_to_keep_is_computed_again(run_held: RunHeld) -> None:
    async def test(bench: HeldBench) -> None:
        first = bench.ask(STREAM, idempotency_key=KEY)
        await bench.until_asked(1)
        bench.say("x")
        follower = bench.ask(STREAM, idempotency_key=KEY)
        await bench.until(lambda: follower.content)
        for _ in range(20):
            bench.say("y")
            await asyncio.sleep(0)
        assert b"answer_not_kept" in (await follower.done()).content
        second = bench.ask(STREAM, idempotency_key=KEY)
        await bench.until_asked(2)
        assert (await bench.ask(BODY, idempotency_key=KEY).done()).status == 409
        for request, asked in enumerate((first, second)):
            bench.say("z", request=request, finish=FinishReason.LENGTH)
            await asked.done()
        identities = {json.loads(one.content.split(b"\n")[0][6:])["id"] for one in (first, second)}
        assert len(identities) == 1
        assert len({request.params.seed for request in bench.channel.requests}) == 1
        assert bench.state.kept_answers.num_bytes == ENTRY_BYTES

    run_held(test, max_kept_answers=16 << 10)


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_followers_are_in_flight_requests_of_their_api_key(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        alice = {"authorization": "Bearer sk-alice-1", "idempotency_key": KEY}
        first = bench.ask(body, **alice)
        await bench.until_asked(1)
        follower = bench.ask(body, **alice)
        await bench.until(lambda: bench.state.kept_answers.num_followers)
        assert bench.state.num_open == 2, "a shutdown waits for both"
        rejected = await bench.ask(body, **alice).done()
        assert (rejected.status, "max_streams=2" in rejected.error["message"]) == (429, True)
        await finished(bench, first)
        assert (await follower.done()).content == first.content
        assert bench.state.num_open == 0
        assert (await bench.ask(body, **alice).done()).status == 200

    run_held(test, key_file="alice sk-alice-1 max_streams=2\n")


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_followers_have_deadlines_of_their_own(run_held: RunHeld, body: Json) -> None:
    async def test(bench: HeldBench) -> None:
        first = bench.ask(body, idempotency_key=KEY)
        await bench.until_asked(1)
        bench.say("x")
        is_stream = "stream" in body
        await bench.until(lambda: first.content or not is_stream)
        follower = await bench.ask(body | {"timeout": 0.05}, idempotency_key=KEY).done()
        assert b"deadline_exceeded" in follower.content
        assert follower.status == (200 if is_stream else 408)
        assert follower.content.endswith(b"data: [DONE]\n\n") == is_stream
        assert (await finished(bench, first)).status == 200

    run_held(test)


def test_a_long_answer_is_followed_to_its_end(run_held: RunHeld) -> None:
    """Its bytes are counted as a kept answer, and not again for each request that follows it."""

    async def test(bench: HeldBench) -> None:
        first = bench.ask(STREAM, idempotency_key=KEY)
        await bench.until_asked(1)
        bench.say("x")
        follower = bench.ask(STREAM, idempotency_key=KEY)
        await bench.until(lambda: follower.content)
        for _ in range(40):
            bench.say("y" * 2000)
            await asyncio.sleep(0)
        answer = (await finished(bench, first)).content
        assert len(answer) > bench.state.held.max_for_one()
        assert (await follower.done()).content == answer

    run_held(test, max_held=64 << 10)


# -- bounds ------------------------------------------------------------------------------------------------


class Store:
    def __init__(self, max_bytes: int) -> None:
        self.now = 0.0
        self.answers = KeptAnswers(max_bytes, clock=lambda: self.now)

    def add(self, tenant: str, key: str, num_bytes: int = 0) -> None:
        name = tenant.encode(), key
        answer = self.answers.open(name, tenant, b"body", None)  # type: ignore[arg-type]
        answer.add(b"x" * num_bytes)
        answer.end()

    def has(self, tenant: str, key: str) -> bool:
        return self.answers.find((tenant.encode(), key), b"body") is not None


def test_answers_expire() -> None:
    store = Store(1 << 20)
    store.add("a", "old")
    store.now = KEPT_SECONDS - 1
    store.add("a", "new")
    assert store.has("a", "old")
    store.now = KEPT_SECONDS
    assert not store.has("a", "old")
    assert store.has("a", "new")
    store.now = 3 * KEPT_SECONDS
    assert not store.has("a", "new")
    assert (len(store.answers), store.answers.num_bytes) == (0, 0)


def test_the_tenant_that_uses_the_most_loses_its_least_recently_used_answer() -> None:
    store = Store(32 * ENTRY_BYTES)
    store.add("small", "0")
    for index in range(30):
        store.add("large", str(index), 100)
        store.has("large", "0")
    assert store.answers.num_bytes <= 32 * ENTRY_BYTES
    assert store.has("small", "0")
    assert store.has("large", "0")
    assert not store.has("large", "1")
    assert store.has("large", "29")
    num_before = len(store.answers)
    store.add("huge", "0", 4 * ENTRY_BYTES)  # above 1/8 of the bytes: only its name is kept
    assert store.answers.find((b"huge", "0"), b"body").pieces is None  # type: ignore[union-attr]
    assert len(store.answers) >= num_before


def test_answers_that_are_being_computed_count_too() -> None:
    store = Store(16 * ENTRY_BYTES)
    running = [store.answers.open((b"a", str(n)), "a", b"body", None) for n in range(12)]  # type: ignore[arg-type]
    for answer in running:
        answer.add(b"x" * 900)
    store.add("b", "0")
    assert store.answers.num_bytes <= 16 * ENTRY_BYTES
    assert store.has("b", "0")
    assert [answer.pieces is None for answer in running] == sorted(
        [answer.pieces is None for answer in running], reverse=True
    )
    for answer in running:
        answer.fail()
    assert len(store.answers) == 1
