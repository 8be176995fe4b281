"""The keeper of budgets: exact over several front ends, and restored from their reports."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.fairness.recent_use import RecentUse
from octavo.fleet.budget import (
    HELD_SECONDS,
    REMEMBERED_SECONDS,
    BudgetKeeper,
    BudgetKind,
    BudgetUse,
    Grant,
    GrantStatus,
    keeper_of,
)
from octavo.link.budget_messages import AskBudget, BudgetMessage, ReportBudget
from unit.fairness.crowd import Clock

GRANTED, FULL, UNKNOWN, OVERLOADED = GrantStatus


class FrontEnd:
    """Holds and spends units of one name without any rule."""

    def __init__(self, name: str, clock: Clock, limit: int, kind: BudgetKind = BudgetKind.REQUESTS) -> None:
        self.name = name
        self.limit = limit
        self.kind = kind
        self.held = self.spent = self.number = 0
        self._reported = 0
        self._own = RecentUse(clock)

    def spend(self, units: int) -> int:
        self.held -= units
        self.spent += units
        return self._own.add(units)

    def use(self, *, is_complete: bool = True) -> BudgetUse:
        num_new = self._own.total() if is_complete else self.spent - self._reported
        recent = self._own.newest(num_new)
        return BudgetUse("alice", self.kind, self.limit, self.held, self.spent, recent, is_complete)

    def report(self, keeper: BudgetKeeper, *, is_complete: bool = False) -> GrantStatus:
        self.number += 1
        status = keeper.report(self.name, self.number, self.use(is_complete=is_complete))
        self._reported = self.spent
        return status

    def ask(self, keeper: BudgetKeeper, units: int, extra: int = 0, *, is_complete: bool = True) -> Grant:
        self.number += 1
        use = self.use(is_complete=is_complete)
        grant = keeper.ask(self.name, self.number, use, units=units, extra=extra)
        self._reported = self.spent
        self.held += grant.units
        return grant


def crowd(clock: Clock, number: int, limit: int) -> list[FrontEnd]:
    return [FrontEnd(f"f{index}", clock, limit) for index in range(number)]


def test_front_ends_together_get_the_limit() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    a, b = crowd(clock, 2, 100)
    assert a.ask(keeper, 30, 10) == Grant(GRANTED, 40)
    assert b.ask(keeper, 50, 100) == Grant(GRANTED, 60)
    assert a.ask(keeper, 1).status is FULL
    b.spend(60)
    assert b.ask(keeper, 1).status is FULL, "spent units count as much as held units"
    clock.now += 30
    a.held = 15  # returns 25
    assert a.report(keeper) is GRANTED
    assert b.ask(keeper, 25) == Grant(GRANTED, 25)
    grant = b.ask(keeper, 60)
    assert grant.status is FULL
    clock.now += grant.seconds
    assert 60 <= clock.now <= 60.5
    assert b.ask(keeper, 60) == Grant(GRANTED, 60)


def test_a_request_for_more_than_the_limit_counts_as_the_limit() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    a, b = crowd(clock, 2, 100)
    assert a.ask(keeper, 1).units == 1
    assert b.ask(keeper, 1000).status is FULL
    a.held = 0
    a.report(keeper)
    assert b.ask(keeper, 1000).units == 100


@given(st.integers(0, 2**32))
def test_repeated_and_overtaken_messages_change_nothing(seed: int) -> None:
    """Two keepers get the same messages, but one gets some of them again later."""
    rng, clock = random.Random(seed), Clock()
    once, again = BudgetKeeper(clock), BudgetKeeper(clock)
    front_ends, sent = crowd(clock, 3, 50), list[tuple[str, int, BudgetUse]]()
    for number in range(40):
        clock.now += rng.choice((0, 0.2, 3))
        front_end, units = rng.choice(front_ends), rng.randint(1, 9)
        front_end.spend(rng.randint(0, front_end.held))
        message = front_end.name, number, front_end.use()
        grants = [keeper.ask(*message, units=units, extra=3) for keeper in (once, again)]
        assert grants[0] == grants[1]
        front_end.held += grants[0].units
        sent.append(message)
        for old in rng.sample(sent, min(3, len(sent))):
            assert again.report(*old) is UNKNOWN


@given(st.integers(0, 2**32))
def test_the_reports_of_all_front_ends_restore_the_budget_of_a_dead_keeper(seed: int) -> None:
    rng, clock, limit = random.Random(seed), Clock(), (3, 20, 1000)[seed % 3]
    old, new = BudgetKeeper(clock), BudgetKeeper(clock)
    front_ends = crowd(clock, 4, limit)
    for _ in range(100):
        clock.now += rng.choice((0, 0.1, 1, 3))
        front_end = rng.choice(front_ends)
        front_end.ask(old, rng.randint(1, max(1, limit // 10)), rng.randint(0, limit // 20))
        front_end.spend(rng.randint(0, front_end.held))
        for front_end in front_ends:
            front_end.report(old, is_complete=True)  # else, what it holds becomes free
    for front_end in front_ends:
        assert front_end.report(new) is UNKNOWN
        assert front_end.report(new, is_complete=True) is GRANTED
    for index, units in enumerate((1, limit // 2, limit)):
        observers = [FrontEnd(f"observer-{index}", clock, limit) for _ in range(2)]
        waits = [
            observer.ask(keeper, units).seconds
            for observer, keeper in zip(observers, (old, new), strict=True)
        ]
        # The new keeper knows the ages of buckets, which are rounded.
        assert waits[0] <= waits[1] <= waits[0] + 0.6
        for keeper in (old, new):
            keeper.drop_front_end(f"observer-{index}")


def test_refunds_and_the_return_to_an_earlier_keeper() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    (a,) = crowd(clock, 1, 10)
    a.ask(keeper, 10)
    bucket = a.spend(10)
    a.report(keeper)
    assert a.ask(keeper, 1).status is FULL
    a.spent -= a._own.refund(4, bucket)
    assert a.report(keeper) is GRANTED
    assert a.ask(keeper, 5).status is FULL
    assert a.ask(keeper, 4).units == 4
    clock.now += 20
    a.spend(4)  # reported to another keeper
    clock.now += 20
    assert a.report(keeper, is_complete=True) is GRANTED
    clock.now += 20.5
    assert a.ask(keeper, 7).status is FULL, "the last 4 units have their true age, and are counted once"
    assert a.ask(keeper, 6).units == 6


def test_what_a_lost_front_end_holds_is_free_and_what_it_has_spent_is_not() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    a, b = crowd(clock, 2, 10)
    a.ask(keeper, 8)
    a.spend(3)
    a.report(keeper)
    assert b.ask(keeper, 3).status is FULL
    keeper.drop_front_end("f0")
    assert b.ask(keeper, 7).units == 7
    assert a.report(keeper) is GRANTED, "it was alive: it holds its units again, and nothing is charged twice"
    b.held = 0
    b.report(keeper)
    assert b.ask(keeper, 3).status is FULL
    assert b.ask(keeper, 2).units == 2


def test_units_of_a_silent_front_end_are_free_after_some_time() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    a, b = (FrontEnd(name, clock, 4, BudgetKind.STREAMS) for name in ("a", "b"))
    assert a.ask(keeper, 4).units == 4
    clock.now += HELD_SECONDS - 1
    assert b.ask(keeper, 1) == Grant(FULL, seconds=1.0)
    clock.now += 2
    assert b.ask(keeper, 1).units == 1


@pytest.mark.parametrize("is_complete", [True, False])
def test_memory_is_bounded(is_complete: bool) -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock, max_shares=1000)

    def ask(name: str, number: int) -> GrantStatus:
        recent = ((0, 50),)  # with a debt for minutes
        use = BudgetUse(name, BudgetKind.TOKENS, 1, 0, 50, recent, is_complete)
        return keeper.ask("f0", number, use, units=1, extra=0).status

    statuses = Counter(ask(f"name-{number}", number) for number in range(5000))
    assert len(keeper) <= 1000
    if is_complete:
        assert statuses == {FULL: 1000, OVERLOADED: 4000}
        assert ask("name-3", 5000) is FULL, "known names go on"
    else:
        assert statuses == {UNKNOWN: 5000}, "names without any use are forgotten"
    clock.now += REMEMBERED_SECONDS + 1
    assert ask("another", 6000) is not OVERLOADED
    assert len(keeper) == 1 or not is_complete


def test_a_debt_is_remembered_without_reports() -> None:
    clock = Clock()
    keeper = BudgetKeeper(clock)
    (a,) = crowd(clock, 1, 10)
    a.ask(keeper, 1)
    a.held = 100
    a.spend(100)
    a.report(keeper)
    clock.now += REMEMBERED_SECONDS + 1
    for number in range(1000):  # sweeps
        use = BudgetUse(f"name-{number}", BudgetKind.TOKENS, 1, 0, 0, (), is_complete=True)
        keeper.report("f0", 1000 + number, use)
    a.number = 5000
    grant = a.ask(keeper, 1)
    assert grant.status is FULL
    assert clock.now + grant.seconds > 9 * 60


def test_only_the_names_of_a_removed_replica_change_their_keeper() -> None:
    replicas = [f"r{index}" for index in range(5)]
    names = [f"name-{index}" for index in range(1000)]
    before = {name: keeper_of(name, replicas) for name in names}
    assert before == {name: keeper_of(name, reversed(replicas)) for name in names}
    assert min(Counter(before.values()).values()) > 100
    for name in names:
        after = keeper_of(name, replicas[1:])
        assert after == before[name] or before[name] == "r0"
    assert keeper_of("a", ()) is None


def test_hostile_messages_are_rejected_when_they_are_decoded() -> None:
    decode = msgspec.msgpack.Decoder(BudgetMessage).decode
    use = BudgetUse("alice", BudgetKind.TOKENS, 10, 1, 5, ((250, 3), (1000, 2)))
    for message in (AskBudget(1, use, 3), ReportBudget(2, (use, use))):
        assert decode(msgspec.msgpack.encode(message)) == message
    wrong = [
        msgspec.structs.replace(use, name="x" * 1000),
        msgspec.structs.replace(use, limit=0),
        msgspec.structs.replace(use, held=-1),
        msgspec.structs.replace(use, spent=1 << 60),
        msgspec.structs.replace(use, recent=((0, 1),) * 1000),
        msgspec.structs.replace(use, recent=((-1, 1),)),
    ]
    for one in wrong:
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode(AskBudget(1, one, 3)))
