"""Views are sent at the requested rate, take bounded time, and end with their leases."""

import itertools

import pytest

from octavo.engine.view_leases import MAX_LEASE, REST, ViewLeases
from octavo.view import Watch


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cost", [0.0, 0.0001, 0.004, 0.1])
def test_views_are_sent_at_the_requested_rate_and_take_one_percent_of_time_at_most(cost: float) -> None:
    clock = Clock()
    leases = ViewLeases(clock, work=clock)
    began: list[float] = []

    def show(owners: tuple[bytes, ...]) -> None:
        assert owners == (b"a",)
        began.append(clock.now)
        clock.now += cost

    assert not leases.is_open
    assert leases.seconds_to_next() == float("inf")
    for _ in range(10_000):
        leases.watch(b"a", Watch(2.0, 0.25))
        leases.take_turn(show)
        clock.now += 0.01
    gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(gaps) > max(0.25, REST * cost) - 1e-6
    assert max(gaps) < max(0.25, REST * cost) + 0.02


def test_new_and_more_frequent_watchers_wait_only_for_the_rest_period() -> None:
    clock = Clock()
    leases = ViewLeases(clock, work=clock)
    shown: list[float] = []

    def show(_: tuple[bytes, ...]) -> None:
        shown.append(clock.now)
        clock.now += 0.001

    leases.watch(b"a", Watch(9.0, 10.0))
    for second in range(4):
        clock.now = 1000.0 + second
        if second == 2:
            leases.watch(b"a", Watch(9.0, 1.5))
        if second == 3:  # it disconnects and reconnects before the next turn
            leases.watch(b"a", Watch(0.0, 0.0))
            leases.watch(b"a", Watch(9.0, 10.0))
        leases.take_turn(show)
        leases.take_turn(show)
    assert shown == [1000.0, 1002.0, 1003.0]


def test_leases_that_are_not_renewed_expire() -> None:
    clock = Clock()
    leases = ViewLeases(clock, work=clock)
    shown: list[tuple[bytes, ...]] = []
    leases.watch(b"a", Watch(2.0, 0.5))
    leases.watch(b"b", Watch(1e9, 3.0))
    leases.take_turn(shown.append)
    assert leases.seconds_to_next() == pytest.approx(0.5)
    clock.now += 3.0
    leases.take_turn(shown.append)
    assert shown == [(b"a", b"b"), (b"b",)]
    clock.now += MAX_LEASE
    leases.take_turn(shown.append)
    assert len(shown) == 2
    assert not leases.is_open
    leases.watch(b"a", Watch(2.0, 0.5))
    leases.watch(b"a", Watch(0.0, 0.0))  # ends the lease
    assert len(shown) == 2
    assert not leases.is_open
