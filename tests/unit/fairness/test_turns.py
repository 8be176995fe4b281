"""Turns are shared by weight, nothing overtakes, and cancelled tasks leave nothing behind."""

import asyncio
import random
from collections.abc import Callable

import pytest

from octavo.fairness.tenant import Tenant
from octavo.fairness.turns import FairTurns
from unit.fairness.crowd import Clock, jain, tenants

Seconds = Callable[[Tenant], float]
NUM_TASKS = 3  # per tenant


def held_seconds(crowd: list[Tenant], seconds: Seconds, total: float) -> dict[Tenant, float]:
    """Return how long each tenant holds the turn when all of them want it all the time."""
    clock = Clock()
    turns = FairTurns(clock)
    held = dict.fromkeys(crowd, 0.0)

    async def flood(tenant: Tenant) -> None:
        while clock.now < total:
            async with turns.turn(tenant):
                duration = seconds(tenant)
                held[tenant] += duration
                clock.now += duration
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(flood(tenant) for tenant in crowd for _ in range(NUM_TASKS)))

    asyncio.run(main())
    return held


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_proportional_to_weights(seed: int) -> None:
    rng, crowd = random.Random(seed), tenants(1, 2, 4, 0.5)
    held = held_seconds(crowd, lambda _: rng.uniform(0.1, 1.0), 2000)
    for tenant, seconds in held.items():
        assert seconds / sum(held.values()) == pytest.approx(tenant.fraction, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_equal_tenants_get_equal_time_whatever_their_jobs_take(seed: int) -> None:
    rng, crowd = random.Random(seed), tenants(*[1.0] * 10)
    slow = {tenant: 10.0 if tenant == crowd[0] else rng.uniform(0.1, 2.0) for tenant in crowd}
    held = held_seconds(crowd, lambda tenant: slow[tenant] * rng.uniform(0.5, 1.5), 2000)
    assert jain(list(held.values())) >= 0.95


@pytest.mark.parametrize("num_before", [1, 2, 7])
@pytest.mark.parametrize("num_flooding", [1, 10])
def test_a_newcomer_waits_for_one_holder(num_before: int, num_flooding: int) -> None:
    """It neither saves up time while it has no work, nor pays for the time before."""
    *crowd, newcomer = tenants(*[1.0] * (num_flooding + 1))
    clock, rng, order = Clock(), random.Random(num_before), list[str]()
    turns = FairTurns(clock)

    async def hold(tenant: Tenant) -> None:
        async with turns.turn(tenant):
            order.append(tenant.name)
            clock.now += rng.uniform(0.8, 1.2)
            await asyncio.sleep(0)

    async def main() -> None:
        waiting = [asyncio.create_task(hold(tenant)) for _ in range(40) for tenant in crowd]
        # The second time it has received service before, but meanwhile the others have received more.
        for num_rounds in (num_before, num_before + 3):
            start = len(order)
            while len(order) < start + num_rounds * num_flooding + 1:
                await asyncio.sleep(0)
            seen = len(order)
            late = asyncio.create_task(hold(newcomer))
            await late
            assert newcomer.name in order[seen : seen + 2]
        await asyncio.gather(*waiting)

    asyncio.run(main())


def test_a_newcomer_does_not_catch_up_on_the_time_before() -> None:
    early, late = tenants(1, 1)
    clock, order = Clock(), list[str]()
    turns = FairTurns(clock)

    async def hold(tenant: Tenant) -> None:
        async with turns.turn(tenant):
            order.append(tenant.name)
            clock.now += 1
            await asyncio.sleep(0)

    async def main() -> None:
        tasks = [asyncio.create_task(hold(early)) for _ in range(40)]
        while len(order) < 20:
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, *(hold(late) for _ in range(20)))

    asyncio.run(main())
    assert abs(order[20:40].count(late.name) - 10) <= 1


def test_one_tenant_is_served_in_order_of_arrival_and_so_are_equal_ones() -> None:
    (alone,) = tenants(1)
    crowd, turns, order = tenants(1, 1, 1), FairTurns(lambda: 0.0), list[int]()

    async def hold(tenant: Tenant, number: int) -> None:
        async with turns.turn(tenant):
            order.append(number)
            await asyncio.sleep(0)

    async def main(arriving: list[Tenant]) -> None:
        order.clear()
        await asyncio.gather(*(hold(tenant, number) for number, tenant in enumerate(arriving)))
        assert order == list(range(len(arriving)))

    asyncio.run(main([alone] * 10))
    asyncio.run(main(crowd * 5))  # the clock stands still, so all have received the same


NUM_CANCELLED_AT = 24  # iterations of the event loop, beyond the last turn


@pytest.mark.parametrize("num_cancelled", [1, 2, 4])
def test_cancellation_at_every_point_leaves_nothing_behind(num_cancelled: int) -> None:
    crowd, num_unfinished = tenants(1, 2), 0

    async def main(first: int, iteration: int) -> int:
        clock = Clock()
        turns = FairTurns(clock)
        holders: list[int] = []
        finished: set[int] = set()

        async def hold(number: int) -> None:
            async with turns.turn(crowd[number % 2]):
                holders.append(number)
                assert len(holders) == 1
                clock.now += 1
                try:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                finally:
                    holders.remove(number)
            finished.add(number)

        tasks = [asyncio.create_task(hold(number)) for number in range(6)]
        for _ in range(iteration):
            await asyncio.sleep(0)
        cancelled = {(first + offset) % 6 for offset in range(num_cancelled)}
        for number in cancelled:
            tasks[number].cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert finished >= set(range(6)) - cancelled
        assert not [one for one in results if isinstance(one, Exception)]
        assert (turns._is_held, len(turns._queue), turns._queue._waiting) == (False, 0, {})
        assert not any(account.num_active for account in turns._queue._accounts._accounts.values())
        async with turns.turn(crowd[0]):
            pass
        return 6 - len(finished)

    for first in range(6):
        for iteration in range(NUM_CANCELLED_AT):
            num_unfinished += asyncio.run(main(first, iteration))
    assert num_unfinished > NUM_CANCELLED_AT, "hardly anything was cancelled in time"


def test_a_failed_holder_is_charged_and_passes_the_turn_on() -> None:
    flooding, other = tenants(1, 1)
    clock = Clock()
    turns = FairTurns(clock)
    order: list[str] = []

    async def fail() -> None:
        async with turns.turn(flooding):
            order.append("flooding")
            clock.now += 1
            await asyncio.sleep(0)
            raise ValueError

    async def hold() -> None:
        async with turns.turn(other):
            order.append("other")

    async def main() -> None:
        await asyncio.gather(fail(), fail(), fail(), hold(), return_exceptions=True)

    asyncio.run(main())
    assert order == ["flooding", "other", "flooding", "flooding"]
