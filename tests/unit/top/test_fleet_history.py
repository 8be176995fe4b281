"""Rates of replicas are differences of their counts, which a replica keeps while it exists."""

import pytest

from octavo.top.fleet import HIT_SECONDS, FleetHistory, Rates, natural
from octavo.view import FleetEvent
from unit.top.seen import a_fleet, a_replica


def rates(fleet: FleetHistory, name: str) -> Rates:
    (replica,) = (one for one in fleet.replicas if one.name == name)
    return fleet.rates(replica)


def test_rates_are_differences_of_two_events() -> None:
    fleet = FleetHistory()
    fleet.note(a_fleet(0, a_replica(0), a_replica(0, "r1", prompt_tokens=10, prompt_tokens_cached=9)))
    assert (rates(fleet, "r0"), rates(fleet, "r1")) == (Rates(), Rates(hits=0.9))
    fleet.note(a_fleet(2, a_replica(2), a_replica(0, "r1", prompt_tokens=10, prompt_tokens_cached=9)))
    assert rates(fleet, "r0") == Rates(10.0, 0.5, 0.4, (0.5,))
    assert rates(fleet, "r1") == Rates(0.0, 0.0, 0.9, (0.0,)), "no prompts: the hit rate since the start"


def test_replicas_disappear_and_appear() -> None:
    fleet = FleetHistory()
    fleet.note(a_fleet(0, a_replica(0), a_replica(0, "r1")))
    fleet.note(a_fleet(1, a_replica(1), a_replica(1, "r2")))
    assert fleet.names == ["r0", "r2"]
    assert rates(fleet, "r0").tokens_per_second == 10.0
    assert rates(fleet, "r2") == Rates(hits=0.4)
    fleet.note(a_fleet(2, a_replica(2), a_replica(2, "r1"), a_replica(2, "r2")))
    assert rates(fleet, "r1") == Rates(hits=0.4), "nothing is kept of the earlier one"
    assert rates(fleet, "r2").tokens_per_second == 10.0


def test_a_restarted_server_starts_again() -> None:
    fleet = FleetHistory()
    for number in range(4):
        fleet.note(a_fleet(number, a_replica(100 + number)))
    fleet.note(a_fleet(4, a_replica(1)))
    assert rates(fleet, "r0") == Rates(hits=0.4)
    fleet.note(a_fleet(5, a_replica(2)))
    assert rates(fleet, "r0") == Rates(10.0, 0.5, 0.4, (0.5,))
    fleet.forget()
    assert (fleet.latest, fleet.names) == (None, [])


def test_the_load_is_at_most_1_and_hits_cover_a_minute() -> None:
    fleet = FleetHistory()
    fleet.note(a_fleet(0, a_replica(0, prompt_tokens=1000, prompt_tokens_cached=1000)))
    for number in range(1, int(HIT_SECONDS) + 5):
        cached = 1000 + 20 * number
        step_seconds = 5.0 * number  # of steps that ended now
        replica = a_replica(
            0, prompt_tokens=1000 + 100 * number, prompt_tokens_cached=cached, step_seconds=step_seconds
        )
        fleet.note(a_fleet(number, replica))
    assert rates(fleet, "r0").hits == pytest.approx(0.2)
    assert rates(fleet, "r0").load == 1.0


def test_events_of_a_new_connection_do_not_disturb_the_rates() -> None:
    fleet = FleetHistory()
    for number in range(5):
        fleet.note(a_fleet(number, a_replica(number)))
        event = a_fleet(number, a_replica(number))
        fleet.note(FleetEvent(time=event.time + 0.01, requests=9, unsent=0, moves=0, replicas=event.replicas))
    assert rates(fleet, "r0") == Rates(10.0, 0.5, 0.4, (0.5,) * 4)


def test_names_are_in_natural_order() -> None:
    names = ["r10", "r2", "r1", "a", "r", "r02", "r1b", ""]
    assert sorted(names, key=natural) == ["", "a", "r", "r1", "r1b", "r2", "r02", "r10"]
