"""Replicas with one fingerprint share a hub; all front ends choose the same one for new requests."""

from typing import Any

import pytest

from data.engine_facts import engine_facts
from octavo.frontend.hub import Hub
from octavo.membership.pools import MAX_ORPHAN_SECONDS, PoolError, Pools
from octavo.protocol import Abort, GenerateRequest


class SilentChannel:
    def send(self, message: GenerateRequest | Abort) -> None:
        pass


class PoolClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def joined(pools: Pools, name: str, fingerprint: str, **facts: Any) -> Hub:
    hub = pools.join(name, engine_facts(system_fingerprint=fingerprint, **facts))
    hub.connect(name, SilentChannel())
    return hub


def current_fingerprint(pools: Pools) -> str | None:
    return None if pools.current is None else pools.current.facts.system_fingerprint


def test_new_requests_go_to_the_larger_pool_whatever_the_order() -> None:
    members = [("a", "old"), ("b", "old"), ("c", "new")]
    for order in (members, members[::-1], members[1:] + members[:1]):
        pools = Pools(Hub)
        hubs = {name: joined(pools, name, fingerprint) for name, fingerprint in order}
        assert hubs["a"] is hubs["b"] is not hubs["c"]
        assert current_fingerprint(pools) == "old"
        pools.leave("a", hubs["a"])
        joined(pools, "a", "new")  # the upgrade goes on
        assert current_fingerprint(pools) == "new"
        assert len(pools.hubs) == 2


def test_a_tie_has_the_same_result_in_every_front_end() -> None:
    first, second = Pools(Hub), Pools(Hub)
    for pools, order in ((first, "ab"), (second, "ba")):
        for name in order:
            joined(pools, name, f"fingerprint {name}")
    assert current_fingerprint(first) == current_fingerprint(second) == "fingerprint b"


def test_a_pool_without_a_usable_replica_gets_no_new_requests() -> None:
    pools = Pools(Hub)
    for name in "ab":
        joined(pools, name, "old").suspect(name, frozenset())
    joined(pools, "c", "new")
    assert current_fingerprint(pools) == "new"


def test_a_replica_must_fit_the_requests_that_were_accepted() -> None:
    pools = Pools(Hub)
    joined(pools, "a", "same", max_model_len=4096)
    with pytest.raises(PoolError, match="--max-model-len 4096"):
        joined(pools, "b", "same", max_model_len=2048)
    joined(pools, "c", "same", max_model_len=8192)
    assert pools.current is not None
    assert pools.current.facts.max_model_len == 4096
    for name in "ac":
        pools.leave(name, pools.current.hub)
    joined(pools, "b", "same", max_model_len=2048)  # nothing that was accepted is left
    assert pools.current.facts.max_model_len == 2048


def test_a_pool_without_replicas_is_given_up_after_a_while() -> None:
    clock = PoolClock()
    pools = Pools(Hub, clock)
    hub = joined(pools, "a", "old")
    pools.leave("a", hub)
    clock.now = MAX_ORPHAN_SECONDS
    pools.end_orphans()
    assert pools.hubs == (hub,)
    assert joined(pools, "a", "old") is hub
    clock.now += 2 * MAX_ORPHAN_SECONDS
    pools.end_orphans()
    assert pools.hubs == (hub,)
    pools.leave("a", hub)
    clock.now += 2 * MAX_ORPHAN_SECONDS
    pools.end_orphans()
    assert len(pools.hubs) == 0
