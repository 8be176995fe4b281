"""Routing over a simulated fleet: cache hits, balance and shares. All times are virtual."""

import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from octavo.fairness.tenant import Tenant
from octavo.fleet.router import Router
from octavo.frontend.output import RequestOutput
from octavo.simulate.fleet import FleetSize, RoundRobin, SimulatedFleet, SimulatedSpeed
from octavo.simulate.fleet_traces import Conversations, send_hot_prefix
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import byte_tokenizer

pytestmark = pytest.mark.usefixtures("untraced")

NUM_BLOCKS = 8192  # of all replicas together


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


def hit_rate(tokenizer: Tokenizer, num_replicas: int, router: Router) -> float:
    # One replica is as fast as four together, so that it has as many conversations at a time.
    speed = SimulatedSpeed(0.010, 0.001 * num_replicas / 4, 0.001 * num_replicas / 4)
    size = FleetSize(num_replicas, NUM_BLOCKS // num_replicas, max_running=256 // num_replicas)
    fleet = SimulatedFleet(size, tokenizer, router=router, speed=speed)
    Conversations(fleet, num_tenants=8, num_conversations=48, num_turns=6)
    fleet.run()
    assert len(fleet.hub) == 0
    return fleet.hit_rate


def test_four_replicas_hit_as_often_as_one_with_the_same_memory(
    tokenizer: Tokenizer, record_property: Callable[[str, object], None]
) -> None:
    one = hit_rate(tokenizer, 1, Router.with_prefixes())
    four = hit_rate(tokenizer, 4, Router.with_prefixes())
    in_turns = hit_rate(tokenizer, 4, RoundRobin())
    record_property(
        "simulated", f"prefix hits: one replica {one:.3f}, four {four:.3f}, in turns {in_turns:.3f}"
    )
    assert four >= 0.95 * one
    assert in_turns < 0.9 * one, "the trace does not need routing by prefix"


@pytest.mark.parametrize("prefix", [500, 4000])
def test_half_of_the_traffic_with_one_prefix_does_not_overload_a_replica(
    tokenizer: Tokenizer, prefix: int, record_property: Callable[[str, object], None]
) -> None:
    fleet = SimulatedFleet(FleetSize(4, NUM_BLOCKS // 4), tokenizer)
    send_hot_prefix(fleet, num_requests=300, per_second=8, prefix=prefix)
    fleet.run()
    record_property("simulated", f"hot prefix of {prefix} tokens: {fleet.imbalance:.2f} of the mean load")
    assert fleet.imbalance <= 1.25


def test_a_prefix_that_one_replica_has_spreads_when_requests_wait_for_it(tokenizer: Tokenizer) -> None:
    """What waits in the front end counts, too. And nobody waits behind a request that waits for a prefix."""
    fleet = SimulatedFleet(FleetSize(4, 4096), tokenizer)
    hot = [7 * number % 199 for number in range(6000)]
    latencies: dict[str, list[float]] = {"hot": [], "short": []}

    def ask(kind: str, prompt: list[int]) -> None:
        began = fleet.now
        fleet.ask(prompt, 1, lambda output: latencies[kind].append(fleet.now - began))

    fleet.at(0.0, lambda: fleet.ask(hot, 1))
    for number in range(200):
        own = [number * place % 197 for place in range(3, 403)]
        fleet.at(20 + number / 4, partial(ask, "hot", [*hot, *own]))
        if number % 4 == 0:
            fleet.at(20.01 + number / 4, partial(ask, "short", own[:50]))
    fleet.run()
    assert fleet.imbalance < 2, [replica.busy_seconds for replica in fleet.replicas]
    assert statistics.median(latencies["hot"]) < 5
    assert statistics.median(latencies["short"]) < 1


def test_without_a_cache_no_prefix_is_taken_for_granted(tokenizer: Tokenizer) -> None:
    fleet = SimulatedFleet(FleetSize(4, 4096, caches_prefixes=False), tokenizer)
    send_hot_prefix(fleet, num_requests=100, per_second=2, prefix=1000)
    fleet.run()
    assert fleet.hit_rate == 0
    assert fleet.imbalance < 1.6, [replica.busy_seconds for replica in fleet.replicas]


def test_shares_hold_over_all_replicas(tokenizer: Tokenizer) -> None:
    """One tenant's requests are drawn to one replica, because they have one prefix. Still, while both have
    work, the tenant with three times the weight has three times as many requests done."""
    fleet = SimulatedFleet(FleetSize(2, NUM_BLOCKS, max_running=8), tokenizer)
    tenants = (Tenant("light", 1.0), Tenant("heavy", 3.0))
    done: Counter[str] = Counter()
    shares: list[float] = []

    def note(tenant: Tenant) -> Callable[[RequestOutput], None]:
        def end(output: RequestOutput) -> None:
            done[tenant.name] += 1
            if done.total() == 200:
                shares.append(done["heavy"] / done["light"])

        return end

    def flood() -> None:
        for number in range(200):
            for tenant in tenants:
                own = [number % 200, *range(100)]
                prompt = [*range(200), *own] if tenant.name == "light" else own
                fleet.ask(prompt, 50, note(tenant), tenant)

    fleet.at(0.0, flood)
    fleet.run()
    assert done == {"light": 200, "heavy": 200}
    assert 2.4 < shares[0] < 3.6, shares


def test_what_exceeds_the_credit_waits_in_the_front_end(tokenizer: Tokenizer) -> None:
    """So it goes to a replica that is added later."""
    fleet = SimulatedFleet(FleetSize(2, NUM_BLOCKS, max_running=4), tokenizer)
    late = fleet.replicas[1]
    fleet.hub.dismiss(late.name, "")

    def flood() -> None:
        for number in range(100):
            fleet.ask([number, *range(199)], 20)
        assert 90 < fleet.hub.num_unsent < 100

    fleet.at(0.0, flood)
    fleet.at(1.0, lambda: fleet.connect(late))
    fleet.run()
    assert len(fleet.hub) == 0
    steps = [replica.core.stats().tokens_sampled for replica in fleet.replicas]
    assert min(steps) > 0.4 * sum(steps)
