"""API keys over sockets: connections per key, and errors that are held back."""

import asyncio
import heapq
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import httpx
import pytest
import uvicorn

from octavo.server.http import error_pace
from octavo.server.http.connection import BoundedHttpProtocol
from octavo.server.http.connection_limit import ConnectionLimit
from octavo.server.http.error_pace import ERRORS_PER_SECOND, MAX_BURST, MAX_DELAY, ErrorPace
from patience import HANG_SECONDS
from server.keyed_bench import ALICE, BOB, KEY_FILE, OPS, KeyedBench, RunKeyed
from server.null_bench import COMPLETIONS


@asynccontextmanager
async def served(bench: KeyedBench) -> AsyncIterator[int]:
    """Serve the application on the protocol of the server, and return the port."""
    limit: ConnectionLimit[BoundedHttpProtocol] = ConnectionLimit(1000, BoundedHttpProtocol.reject_busy)
    protocol = partial(BoundedHttpProtocol, connection_limit=limit, stalled_seconds=60.0)
    config = uvicorn.Config(bench.app, http=protocol, ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        try:
            await bench.bench.until(lambda: server.started)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_connections_are_counted_over_sockets(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        alice = bench.keys.accounts.of("alice")
        as_alice = bearer(ALICE)
        async with (
            served(bench) as port,
            client(port) as first,
            client(port) as second,
            client(port) as third,
        ):
            for _ in range(3):
                for one in (first, second):
                    assert (await one.get("/v1/models", headers=as_alice)).status_code == 200
            assert alice.num_connections == 2
            rejected = await third.get("/v1/models", headers=as_alice)
            assert (rejected.status_code, rejected.headers["connection"]) == (429, "close")
            assert "max_connections=2" in rejected.json()["error"]["message"]
            assert (await third.get("/livez")).status_code == 200
            assert (await third.get("/v1/models", headers=bearer(BOB))).status_code == 200
            await second.aclose()
            await bench.bench.until(lambda: alice.num_connections == 1)
            assert (await third.get("/v1/models", headers=as_alice)).status_code == 200
            assert (alice.num_connections, bench.keys.accounts.of("bob").num_connections) == (2, 0)
        await bench.bench.until(lambda: alice.num_connections == 0)
        assert alice.usage.rejected == {"max_connections": 1}

    run_keyed(test, KEY_FILE.replace(ALICE, f"{ALICE} max_connections=2"))


# -- the pace of errors --------------------------------------------------------------------------------------


def test_many_errors_of_a_key_are_sent_at_the_documented_pace() -> None:
    """With 1,000 connections that retry at once, for a minute; then the key has a burst again."""
    now = 1000.0
    pace = ErrorPace(lambda: now)
    waiting = [now] * 1000
    sent: list[float] = []
    while (now := heapq.heappop(waiting)) < 1060:
        sent.append(now + pace.delay())
        heapq.heappush(waiting, sent[-1])
    assert sum(at == 1000 for at in sent) == MAX_BURST
    # At the pace, 1,000 errors would take longer than the maximum delay.
    assert 1000 / MAX_DELAY * 55 <= sum(at < 1060 for at in sent) <= 1000 / MAX_DELAY * 61 + MAX_BURST
    now += MAX_DELAY + MAX_BURST / ERRORS_PER_SECOND
    assert [pace.delay() == 0 for _ in range(MAX_BURST + 1)] == [True] * MAX_BURST + [False]
    few = [pace.delay() for _ in range(20)]
    assert [round(b - a, 9) for a, b in pairwise(few)] == [1 / ERRORS_PER_SECOND] * 19


@pytest.mark.parametrize("key", [ALICE, "unknown"])
def test_an_error_is_held_back_only_for_the_key_that_gets_many(
    run_keyed: RunKeyed, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(error_pace, "MAX_DELAY", 10 * HANG_SECONDS)

    async def test(bench: KeyedBench) -> None:
        accounts = bench.keys.accounts
        pace = accounts.of("alice").errors if key == ALICE else accounts.other_errors
        async with served(bench) as port, client(port) as flooding, client(port) as other:
            assert (await flooding.get("/nothing", headers=bearer(key))).status_code == 404
            first = await flooding.post(COMPLETIONS, headers=bearer(key), json={})
            assert first.status_code == (400 if key == ALICE else 401)
            while pace.delay() < 5 * HANG_SECONDS:
                pass
            num_tasks = len(asyncio.all_tasks())
            held = asyncio.create_task(flooding.post(COMPLETIONS, headers=bearer(key), json={}))
            for one in (BOB, OPS, "another unknown") if key == ALICE else (ALICE, BOB):
                answer = await other.post(COMPLETIONS, headers=bearer(one), json={})
                assert answer.status_code == (401 if one == "another unknown" else 400)
            if key == ALICE:
                assert (await other.get("/v1/models", headers=bearer(ALICE))).status_code == 200
            assert not held.done()
            held.cancel()  # disconnects
            await asyncio.wait([held])
            await bench.bench.until(lambda: len(asyncio.all_tasks()) <= num_tasks)

    run_keyed(test, KEY_FILE)


def test_an_error_that_is_held_back_is_sent_when_the_server_stops(
    run_keyed: RunKeyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_pace, "MAX_DELAY", 10 * HANG_SECONDS)

    async def test(bench: KeyedBench) -> None:
        pace = bench.keys.accounts.of("alice").errors
        while pace.delay() < 5 * HANG_SECONDS:
            pass
        due = pace._due
        async with served(bench) as port:
            flooding = client(port)
            held = asyncio.create_task(flooding.post(COMPLETIONS, headers=bearer(ALICE), json={}))
            await bench.bench.until(lambda: pace._due > due)
        assert (await held).status_code == 400
        await flooding.aclose()

    run_keyed(test, KEY_FILE)
