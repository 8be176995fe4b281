"""Where requests go."""

from array import array
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.fleet import router as router_module
from octavo.fleet.cost import RequestSize, seconds_for, typical_speed
from octavo.fleet.ring import Ring
from octavo.fleet.router import MAX_CANDIDATES, Router

REQUEST = RequestSize(num_tokens=320, max_new_tokens=64)
BLOCK_SIZE = 16


@dataclass
class FixedLoad:
    is_usable: bool = True
    num_sequences: int = 0
    num_prompt_tokens: int = 0
    blocks_available: int | None = None
    seconds_per_prompt_token: float = 1e-3
    seconds_per_sequence: float = 1e-3


def fleet(loads: dict[str, FixedLoad]) -> Router:
    router = Router.with_prefixes()
    for name, load in loads.items():
        router.add(name, load)
        router.connect(name, "fingerprint", BLOCK_SIZE, 100)
    return router


def prompt_keys(router: Router, number: int = 0) -> "array[int]":
    return router.keys("", range(number, number + 321))


LOADS = st.builds(
    FixedLoad,
    is_usable=st.booleans(),
    num_sequences=st.integers(0, 40),
    num_prompt_tokens=st.integers(0, 5000),
    blocks_available=st.none() | st.integers(0, 100),
    seconds_per_prompt_token=st.sampled_from((0.0, 1e-3, 5e-3)),
    seconds_per_sequence=st.sampled_from((0.0, 1e-3, 5e-3)),
)


@given(loads=st.lists(LOADS, min_size=1, max_size=30), excluded=st.integers(0, 29), depth=st.integers(0, 20))
def test_a_usable_replica_is_chosen_if_there_is_one(
    loads: list[FixedLoad], excluded: int, depth: int
) -> None:
    named = {f"r{number}": load for number, load in enumerate(loads)}
    router = fleet(named)
    keys = prompt_keys(router)
    router.promise("r0", keys[:depth])
    usable = {name for name, load in named.items() if load.is_usable and name != f"r{excluded}"}
    route = router.choose("q", REQUEST, keys, f"r{excluded}")
    assert (route is None) == (not usable)
    if route is None:
        return
    assert route.replica in usable
    assert route == router.choose("q", REQUEST, keys, f"r{excluded}"), "the same question, the same answer"
    if len(loads) <= MAX_CANDIDATES:
        cached = {"r0": depth * BLOCK_SIZE} if len(loads) > 1 else {}
        typical = typical_speed([named[name] for name in usable])
        costs = {
            name: seconds_for(REQUEST, named[name], cached.get(name, 0), BLOCK_SIZE, typical)
            for name in usable
        }
        assert costs[route.replica] <= min(costs.values()) * router_module.NEAR


@pytest.mark.parametrize("measured", [1e-5, 1e-1])
def test_a_replica_without_measurements_gets_its_share(measured: float) -> None:
    known = FixedLoad(seconds_per_prompt_token=measured, seconds_per_sequence=measured)
    new = FixedLoad(seconds_per_prompt_token=0.0, seconds_per_sequence=0.0)
    loads = {"r0": known, "r1": new}
    router = fleet(loads)
    for number in range(64):
        route = router.choose(f"q{number}", REQUEST, prompt_keys(router, 1000 * number))
        assert route is not None
        loads[route.replica].num_sequences += 1
    assert known.num_sequences == new.num_sequences == 32


def test_few_of_many_replicas_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of candidates does not grow with the fleet, and prefixes are found all the same."""
    loads = {f"r{number}": FixedLoad() for number in range(1000)}
    router = fleet(loads)
    compared: list[object] = []

    def counted(*arguments: Any) -> float:
        compared.append(arguments)
        return seconds_for(*arguments)

    monkeypatch.setattr(router_module, "seconds_for", counted)
    for number in range(50):
        keys = prompt_keys(router, 1000 * number)
        compared.clear()
        first = router.choose(f"first {number}", REQUEST, keys)
        assert first is not None
        assert len(compared) <= MAX_CANDIDATES
        router.promise(first.replica, keys)
        second = router.choose(f"second {number}", REQUEST, keys)
        assert second is not None
        assert (second.replica, second.num_cached) == (first.replica, 320)
        assert len(compared) <= 2 * MAX_CANDIDATES


def test_equal_replicas_get_equal_parts() -> None:
    """Nothing distinguishes the replicas, so a crowd of requests must not go to one of them."""
    router = fleet({f"r{number}": FixedLoad() for number in range(10)})
    counts = dict.fromkeys((f"r{number}" for number in range(10)), 0)
    for number in range(2000):
        route = router.choose(f"q{number}", REQUEST, prompt_keys(router, number))
        assert route is not None
        counts[route.replica] += 1
    assert min(counts.values()) > 150
    assert max(counts.values()) < 250


def test_a_prefix_is_worth_waiting_for_until_computing_it_again_costs_less() -> None:
    loads = {"r0": FixedLoad(), "r1": FixedLoad()}
    router = fleet(loads)
    keys = prompt_keys(router)
    router.promise("r0", keys)
    chosen = []
    for ahead in range(0, 1000, 50):
        loads["r0"].num_prompt_tokens = ahead
        route = router.choose("q", REQUEST, keys)
        assert route is not None
        chosen.append((ahead, route.replica))
    # It lacks 320 tokens at r1.
    assert {replica for ahead, replica in chosen if ahead < 300} == {"r0"}
    assert {replica for ahead, replica in chosen if ahead > 350} == {"r1"}


@given(count=st.integers(2, 20), removed=st.integers(0, 19), keys=st.lists(st.integers(0, (1 << 64) - 1)))
def test_a_replica_that_leaves_changes_only_its_own_keys(count: int, removed: int, keys: list[int]) -> None:
    ring = Ring()
    for number in range(count):
        ring.add(f"r{number}")
    before = [ring.owners(key, 1, lambda name: True) for key in keys]
    gone = f"r{removed % count}"
    unusable = [ring.owners(key, 1, lambda name: name != gone) for key in keys]
    ring.remove(gone)
    after = [ring.owners(key, 1, lambda name: True) for key in keys]
    assert after == unusable
    assert all(old == new for old, new in zip(before, after, strict=True) if old != [gone])
