"""Limits per key over several front ends, in virtual time: messages take time, keepers and front ends die."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from octavo.config import ServerOptions
from octavo.fleet.budget import BudgetKeeper
from octavo.link.budget_messages import BudgetMessage, BudgetReply, answer_budget
from octavo.server.app import build_app
from octavo.server.http.errors import ApiError
from octavo.server.http.key_file import KeyLimits
from octavo.server.http.key_source import KeySource
from octavo.server.http.keys import Keys
from octavo.server.key_limits import KeyAccount, KeyedRequest
from server.budget_fleet import BudgetFleet, budget_fleet
from server.exchange import Exchange
from server.minute import max_in_a_minute
from server.null_bench import COMPLETIONS, Bench, RunNull
from server.recording import recorded
from server.virtual_time import now, run_virtually

GENERATED = (Phase.reuse, Phase.generate)  # smaller seeds are not simpler


async def begun(account: KeyAccount) -> KeyedRequest:
    keyed = KeyedRequest()
    await keyed.begin(account, is_counted=True)
    return keyed


async def opened(account: KeyAccount, num_prompt: int = 1, num_answer: int = 0) -> KeyedRequest:
    """Return a generation request that was submitted."""
    keyed = await begun(account)
    try:
        await keyed.enter()
        await keyed.reserve(num_prompt, num_answer)
    except ApiError as error:
        keyed.leave()
        keyed.close(error.status)
        raise
    keyed.submit()
    return keyed


def ended(keyed: KeyedRequest) -> None:
    keyed.leave()
    keyed.close(200)


async def rejection(request: Awaitable[object]) -> ApiError | None:
    try:
        await request
    except ApiError as error:
        return error
    return None


async def num_accepted(account: KeyAccount, number: int) -> int:
    """Return how many of this number of requests are accepted, one after the other."""
    return sum([await rejection(begun(account)) is None for _ in range(number)])


def on_fleet(
    test: Callable[[BudgetFleet], Coroutine[Any, Any, None]], num_front_ends: int = 2, **limits: int
) -> None:
    async def main() -> None:
        async with budget_fleet(KeyLimits(**limits), num_front_ends=num_front_ends) as fleet:
            await test(fleet)

    run_virtually(main())


# -- the limits hold, whatever happens ---------------------------------------------------------------------


class Traffic:
    """Random requests at all front ends, and what was accepted of them."""

    def __init__(self, fleet: BudgetFleet, *, requests_per_minute: int, max_tokens: int) -> None:
        """`max_tokens`: of a prompt, and of an answer."""
        self._fleet = fleet
        self._rng = fleet.rng
        self._requests_per_second = requests_per_minute / 60
        self._max_tokens = max_tokens
        self.requests: list[tuple[float, int]] = []
        self.tokens: list[tuple[float, int]] = []
        self.num_open = self.max_open = 0

    async def flow(self, seconds: float) -> None:
        tasks, end = list[asyncio.Task[None]](), now() + seconds
        while now() < end:
            tasks.append(asyncio.create_task(self._request(self._rng.choice(self._fleet.accounts))))
            await asyncio.sleep(self._rng.expovariate(self._requests_per_second))
        await asyncio.gather(*tasks)

    async def _request(self, account: KeyAccount) -> None:
        rng = self._rng
        num_prompt, num_answer = rng.randint(1, self._max_tokens), rng.randint(0, self._max_tokens)
        try:
            keyed = await opened(account, num_prompt, num_answer)
        except ApiError:
            return
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        self.requests.append((now(), 1))
        self.tokens.append((now(), num_prompt))
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(rng.choice((0.01, 0.3, 5)))
            num_tokens = rng.randint(0, num_answer // 3)
            keyed.note_generated(num_tokens)
            self.tokens.append((now(), num_tokens))
        self.num_open -= 1
        ended(keyed)


async def keep_changing(fleet: BudgetFleet) -> None:
    """Kill keepers of the key and start others, which may become its keeper."""
    while True:
        await asyncio.sleep(fleet.rng.uniform(3, 30))
        if fleet.rng.random() < 0.6 and len(fleet.keepers) > 1:
            fleet.kill_keeper()
        else:
            fleet.start_keeper()


@settings(max_examples=20, phases=GENERATED)
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([2, 30, 200]),
    st.sampled_from([10, 3000]),
    st.sampled_from([2, 50]),
)
def test_no_minute_has_more_than_the_limit(
    seed: int, num_front_ends: int, requests: int, tokens: int, streams: int
) -> None:
    """While keepers change, and front ends notice it one after the other."""
    limits = KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens, max_streams=streams)

    async def main() -> None:
        async with budget_fleet(limits, num_front_ends=num_front_ends, seed=seed) as fleet:
            max_tokens = max(1, tokens // fleet.rng.choice((5, 30, 100)))
            traffic = Traffic(fleet, requests_per_minute=2 * requests, max_tokens=max_tokens)
            changes = asyncio.create_task(keep_changing(fleet))
            await traffic.flow(150)
            changes.cancel()
            assert traffic.requests
            assert max_in_a_minute(traffic.requests) <= requests
            assert max_in_a_minute(traffic.tokens) <= tokens
            assert traffic.max_open <= streams
            assert traffic.num_open == 0
            await asyncio.sleep(65)
            assert await num_accepted(fleet.rng.choice(fleet.accounts), 300) == requests, "all units are back"

    run_virtually(main())


@settings(max_examples=6, phases=GENERATED)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 60, 600]))
def test_one_busy_front_end_gets_the_whole_limit(seed: int, num_front_ends: int, limit: int) -> None:
    async def main() -> None:
        limits = KeyLimits(requests_per_minute=limit)
        async with budget_fleet(limits, num_front_ends=num_front_ends, seed=seed) as fleet:
            accepted, begin = 0, now()
            while now() < begin + 5 * 60 + 1:
                accepted += await rejection(begun(fleet.accounts[0])) is None
                await asyncio.sleep(20 / limit if limit > 1 else 0.5)
            assert accepted >= 0.9 * 5 * limit

    run_virtually(main())


@pytest.mark.parametrize("seed", range(3))
def test_lost_messages_cost_each_front_end_its_share_and_no_more(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = KeyLimits(requests_per_minute=100, tokens_per_minute=10**6, max_streams=1000)

    async def main() -> None:
        async with budget_fleet(limits, num_front_ends=4, seed=seed, loss=0.1) as fleet:
            traffic = Traffic(fleet, requests_per_minute=200, max_tokens=10)
            await traffic.flow(150)
            assert max_in_a_minute(traffic.requests) <= 2 * 100
            assert len(traffic.requests) >= 0.9 * 100 * 150 / 60

    caplog.set_level(logging.WARNING)
    run_virtually(main())
    assert 1 <= len(caplog.records) <= 4 * 4, "one line per front end and minute"


# -- single properties -------------------------------------------------------------------------------------


def test_few_requests_need_a_round_trip() -> None:
    async def test(fleet: BudgetFleet) -> None:
        assert await num_accepted(fleet.accounts[0], 1000) == 1000
        assert fleet.transports[0].num_asked < 1000 / 100 + 10

    on_fleet(test, requests_per_minute=6000)


def test_without_a_limit_nothing_is_asked() -> None:
    async def test(fleet: BudgetFleet) -> None:
        began = now()
        for _ in range(10):
            ended(await opened(fleet.accounts[0], 5, 5))
        assert now() == began
        await asyncio.sleep(5)
        assert fleet.transports[0].num_asked == 0

    on_fleet(test, max_connections=3)


def test_unused_units_return_after_a_second() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        assert await num_accepted(first, 1) == 1
        assert await num_accepted(second, 500) == 389, "10 are spare at the first front end"
        await asyncio.sleep(2)
        assert await num_accepted(second, 500) == 10

    on_fleet(test, requests_per_minute=400)


def test_retry_after_is_that_of_the_keeper() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        began = now()
        assert await num_accepted(first, 20) == 20
        await asyncio.sleep(10)
        error = await rejection(begun(second))
        assert error is not None
        assert "requests_per_minute=20: retry in 5" in str(error)
        await asyncio.sleep(int(error.headers["retry-after-ms"]) / 1000)
        assert 60 < now() - began < 61
        assert await num_accepted(second, 1) == 1

    on_fleet(test, requests_per_minute=20)


def test_rejected_requests_do_not_count() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        open_one = await opened(first)
        for _ in range(10):
            await asyncio.sleep(1)  # the request is reported before it is rejected by another limit
            keyed = await begun(second)
            await asyncio.sleep(1)
            assert "max_streams=1" in str(await rejection(keyed.enter()))
            keyed.close(429)
        await asyncio.sleep(1)
        assert await num_accepted(first, 5) == 2
        ended(open_one)

    on_fleet(test, requests_per_minute=3, max_streams=1)


def test_a_stream_may_begin_elsewhere_at_once_when_another_has_ended() -> None:
    async def test(fleet: BudgetFleet) -> None:
        for index in range(20):
            keyed = await opened(fleet.accounts[index % 2])
            assert await rejection(opened(fleet.accounts[(index + 1) % 2])) is not None
            await asyncio.sleep(0.3)
            ended(keyed)

    on_fleet(test, max_streams=1)


def test_answers_longer_than_foreseen_are_a_debt_of_all_front_ends() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        keyed = await opened(first, 10)
        keyed.note_generated(290)
        ended(keyed)
        await asyncio.sleep(1)
        error = await rejection(opened(second, 1))
        assert error is not None
        assert 3 * 60 - 2 < int(error.headers["retry-after"]) < 3 * 60 + 2

    on_fleet(test, tokens_per_minute=100)


def test_changed_limits_apply_at_once() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        assert await num_accepted(first, 20) == 10
        fleet.set_limits(KeyLimits(requests_per_minute=12))
        assert await num_accepted(second, 20) == 2
        fleet.set_limits(KeyLimits())
        assert await num_accepted(second, 20) == 20
        fleet.set_limits(KeyLimits(requests_per_minute=5))
        assert await num_accepted(first, 20) == 0

    on_fleet(test, requests_per_minute=10)


def test_a_cancelled_request_takes_nothing() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        for _ in range(10):
            task = asyncio.create_task(begun(first))
            await asyncio.sleep(0.0001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(2)
        assert await num_accepted(second, 20) == 10

    on_fleet(test, requests_per_minute=10)


# -- keepers and front ends that die -----------------------------------------------------------------------


def test_a_new_keeper_knows_what_was_used_before() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second, third = fleet.accounts
        streams = [await opened(account, 10) for account in (first, first, second)]
        for _ in range(2):
            fleet.kill_keeper()
            began = now()
            assert "max_streams=3" in str(await rejection(opened(third)))
            assert now() - began < 3
        ended(streams.pop())
        await asyncio.sleep(1)
        assert "tokens_per_minute=35" in str(await rejection(opened(third, 6)))
        ended(await opened(third, 5))
        for keyed in streams:
            ended(keyed)

    on_fleet(test, 3, tokens_per_minute=35, max_streams=3)


def test_streams_of_a_dead_front_end_are_released() -> None:
    async def test(fleet: BudgetFleet) -> None:
        first, second = fleet.accounts
        for _ in range(3):
            await opened(first)
        await asyncio.sleep(60)
        assert await rejection(opened(second)) is not None, "long streams stay counted"
        await fleet.stop_front_end(0)
        await asyncio.sleep(1)
        assert await rejection(opened(second)) is None

    on_fleet(test, max_streams=3)


def test_without_an_answer_each_front_end_has_its_share() -> None:
    async def test(fleet: BudgetFleet) -> None:
        cut, other = fleet.accounts
        assert await num_accepted(cut, 10) == 10
        fleet.transports[0].is_cut = True
        began = now()
        error = await rejection(asyncio.gather(*(begun(cut) for _ in range(100))))
        assert error is not None
        assert error.headers["retry-after"] == "1"
        assert now() - began < 0.6, "all requests wait for the same answer"
        assert 10 <= cut.usage.rejected["requests_per_minute"] <= 90
        assert await rejection(begun(cut)) is not None
        assert await num_accepted(other, 100) == 50 + 50 - 10 - 2, "the first one holds 2 spare units"
        fleet.transports[0].is_cut = False
        await asyncio.sleep(2)
        assert await num_accepted(other, 10) == 0, "the keeper knows what was used in between"
        await asyncio.sleep(60)
        assert await num_accepted(cut, 200) == 100 - 38, "what was used beyond the limit is a debt"

    on_fleet(test, requests_per_minute=100)


def test_a_share_below_one_unit_admits_nothing() -> None:
    async def test(fleet: BudgetFleet) -> None:
        fleet.transports[0].is_cut = True
        assert await rejection(begun(fleet.accounts[0])) is not None
        fleet.transports[0].is_cut = False
        await asyncio.sleep(2)
        assert await rejection(begun(fleet.accounts[0])) is None

    on_fleet(test, 4, requests_per_minute=3)


def test_without_any_keeper_each_front_end_has_its_share() -> None:
    async def test(fleet: BudgetFleet) -> None:
        while fleet.keepers:
            fleet.kill_keeper()
        await asyncio.sleep(2)
        assert [await num_accepted(account, 10) for account in fleet.accounts] == [5, 5]
        fleet.start_keeper()
        await asyncio.sleep(2)
        assert await num_accepted(fleet.accounts[0], 1) == 0

    on_fleet(test, requests_per_minute=10)


def test_a_keeper_with_too_many_budgets_leaves_shares() -> None:
    async def test(fleet: BudgetFleet) -> None:
        for name in fleet.keepers:
            fleet.keepers[name] = BudgetKeeper(asyncio.get_running_loop().time, max_shares=0)
        assert [await num_accepted(account, 10) for account in fleet.accounts] == [5, 5]

    on_fleet(test, requests_per_minute=10)


# -- over HTTP ---------------------------------------------------------------------------------------------


class DirectTransport:
    """A transport without any delay."""

    num_front_ends = 2

    def __init__(self, keeper: BudgetKeeper, name: str) -> None:
        self._keeper = keeper
        self._name = name

    def keeper_of(self, name: str) -> str | None:
        return "r0"

    def watch_keepers(self, changed: Callable[[], None]) -> None:
        pass

    async def ask(self, keeper: str, message: BudgetMessage) -> BudgetReply:
        return answer_budget(self._keeper, self._name, message)


def test_two_servers_share_the_limits_of_a_key(run_null: RunNull, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice sk-alice-1 requests_per_minute=5 tokens_per_minute=10000 max_streams=4\n")

    async def test(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        keeper = BudgetKeeper(loop.time)
        apps = [
            recorded(build_app(bench.state, Keys(source, transport=DirectTransport(keeper, name))))
            for name in ("f0", "f1")
            if (source := KeySource(ServerOptions(api_key_file=str(path))))
        ]
        statuses = []
        for app in (apps[0], apps[0], apps[0], apps[1], apps[1], apps[1], apps[0]):
            headers = ((b"authorization", b"Bearer sk-alice-1"),)
            answered = await Exchange(app, COMPLETIONS, {"prompt": "x", "max_tokens": 3}, headers).done()
            statuses.append(answered.status)
        assert statuses == [200] * 5 + [429] * 2
        assert b"requests_per_minute=5" in answered.content

    run_null(test, num_replicas=1)
