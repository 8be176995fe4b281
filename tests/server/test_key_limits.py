"""Limits per key, on a simulated clock: exact in any 60 seconds, and with a true Retry-After."""

import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.fairness.minute_window import MinuteWindow
from octavo.server.http.connection_owner import ConnectionOwner
from octavo.server.http.errors import ApiError
from octavo.server.http.key_file import KeyLimits
from octavo.server.key_limits import KeyAccount, KeyAccounts, KeyedRequest
from server.minute import max_in_a_minute

MINUTES = 10

Result = TypeVar("Result")


def at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that must not suspend: this server is alone."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits for something")


class Clock:
    def __init__(self, now: float = 1000.1) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def account_of(clock: Clock, **limits: int) -> KeyAccount:
    account = KeyAccount(clock)
    account.set_limits(KeyLimits(**limits))
    return account


def begun(account: KeyAccount) -> KeyedRequest:
    keyed = KeyedRequest()
    at_once(keyed.begin(account, is_counted=True))
    return keyed


def generation(account: KeyAccount, num_prompt: int, num_answer: int = 0) -> KeyedRequest:
    """Return a submitted generation request."""
    keyed = begun(account)
    try:
        at_once(keyed.enter())
        at_once(keyed.reserve(num_prompt, num_answer))
    except ApiError as error:
        keyed.leave()
        keyed.close(error.status)
        raise
    keyed.submit()
    return keyed


def rejection(call: Callable[[], object]) -> ApiError | None:
    try:
        call()
    except ApiError as error:
        return error
    return None


def retry_after(error: ApiError | None) -> float:
    assert error is not None
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    seconds = int(error.headers["retry-after-ms"]) / 1000
    assert seconds <= int(error.headers["retry-after"]) < seconds + 1 or error.headers["retry-after"] == "1"
    return seconds


# -- requests and tokens per minute ------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.01, 0.25, 0.33, 7.0])
@pytest.mark.parametrize("limit", [1, 60, 600])
def test_a_flood_of_requests_gets_exactly_the_limit(gap: float, limit: int) -> None:
    """Every `gap` seconds, more requests arrive than the limit allows."""
    clock = Clock()
    account = account_of(clock, requests_per_minute=limit)
    begin, accepted = clock.now, list[tuple[float, int]]()
    while clock.now < begin + MINUTES * 60:
        while rejection(lambda: begun(account)) is None:
            accepted.append((clock.now, 1))
        clock.now += gap
    assert max_in_a_minute(accepted) <= limit
    if gap < 1:
        assert len(accepted) == pytest.approx(MINUTES * limit, rel=0.01)


@given(st.integers(0, 2**32), st.integers(50, 5000))
def test_bursts_of_token_requests_never_exceed_the_limit(seed: int, limit: int) -> None:
    """Requests of random size arrive in bursts; each takes what it has reserved over some time."""
    generator, clock = random.Random(seed), Clock()
    account = account_of(clock, tokens_per_minute=limit)
    charges: list[tuple[float, int]] = []
    in_flight: list[tuple[KeyedRequest, int]] = []
    for _ in range(300):
        clock.now += generator.choice((0.0, 0.01, 0.3, 5.0))
        num_prompt, num_answer = generator.randint(1, limit // 4), generator.randint(0, limit // 4)
        if (started := attempt(account, num_prompt, num_answer)) is not None:
            in_flight.append((started, num_answer))
            charges.append((clock.now, num_prompt))
        if in_flight and generator.random() < 0.7:
            keyed, num_answer = in_flight.pop(generator.randrange(len(in_flight)))
            num_tokens = generator.randint(0, num_answer)
            keyed.note_generated(num_tokens)
            charges.append((clock.now, num_tokens))
            keyed.leave()
    assert charges
    assert max_in_a_minute(charges) <= limit


@pytest.mark.parametrize("num_answer", [0, 40])
def test_a_flood_of_tokens_gets_exactly_the_limit(num_answer: int) -> None:
    limit, clock = 6000, Clock()
    account = account_of(clock, tokens_per_minute=limit)
    begin, charges = clock.now, list[tuple[float, int]]()
    while clock.now < begin + MINUTES * 60:
        started = []
        while (one := attempt(account, 10, num_answer)) is not None:
            started.append(one)
            charges.append((clock.now, 10))
        clock.now += 0.1
        for one in started:
            one.note_generated(num_answer)
            one.leave()
            charges.append((clock.now, num_answer))
    assert max_in_a_minute(charges) <= limit
    assert sum(units for _, units in charges) == pytest.approx(MINUTES * limit, rel=0.01)


def attempt(account: KeyAccount, num_prompt: int, num_answer: int) -> KeyedRequest | None:
    found: list[KeyedRequest] = []
    rejection(lambda: found.append(generation(account, num_prompt, num_answer)))
    return found[0] if found else None


@pytest.mark.parametrize("num_answer", [300, 5000])
def test_answers_longer_than_foreseen_are_paid_later(num_answer: int) -> None:
    """Requests without max_tokens exceed the limit at first, but not in the long run."""
    limit, clock, minutes = 1000, Clock(), 1000
    account = account_of(clock, tokens_per_minute=limit)
    begin, total = clock.now, 0
    while clock.now < begin + minutes * 60:
        error = rejection(lambda: generation(account, 10).leave())
        if error is not None:
            clock.now += retry_after(error)
            continue
        clock.now += 0.5
        account.tokens.spend(num_answer, num_reserved=0)
        total += 10 + num_answer
    assert total == pytest.approx(minutes * limit, rel=0.01)


@given(st.integers(0, 2**32))
def test_retry_after_is_true(seed: int) -> None:
    """A retry at that time succeeds, and 0.3 s earlier it fails, also while there is a debt."""
    generator = random.Random(seed)
    clock = Clock(generator.uniform(0, 1000))
    limits = {
        "requests_per_minute": generator.randint(1, 20),
        "tokens_per_minute": generator.randint(20, 400),
    }
    account = account_of(clock, **limits)
    for _ in range(60):
        size = generator.randint(1, 60)
        if (error := rejection(partial(finished, account, size, generator))) is not None:
            seconds, now = retry_after(error), clock.now
            clock.now = now + seconds - 0.3
            # Shorter than 0.3 s: that would be before the first attempt.
            if seconds > 0.3:
                assert rejection(partial(finished, account, size, generator)) is not None
            clock.now = now + seconds
            earlier = error
            while (error := rejection(partial(finished, account, size, generator))) is not None:
                assert str(earlier).partition("=")[0] != str(error).partition("=")[0], "another limit"
                clock.now, earlier = clock.now + retry_after(error), error
        clock.now += generator.choice((0, 0.01, 1, 20))


def finished(account: KeyAccount, num_prompt: int, generator: random.Random) -> None:
    keyed = generation(account, num_prompt)
    keyed.note_generated(generator.choice((0, 0, 100)))
    keyed.leave()
    keyed.close(200)


@given(st.integers(0, 2**32))
def test_skipping_cycles_of_a_large_debt_changes_nothing(seed: int) -> None:
    generator = random.Random(seed)
    clock = Clock(generator.uniform(0, 1000))

    class Stepwise(MinuteWindow):
        def _skip_cycles(self, max_cycles: int) -> None:
            pass

    windows = [MinuteWindow(clock), Stepwise(clock)]
    for _ in range(20):
        clock.now += generator.choice((0, 0.2, 3, 61, 1000))
        units, limit = generator.choice((1, 7, 100, 1000)), generator.choice((None, 5, 20, 100))
        for window in windows:
            window.limit = limit or window.limit or 5
            window.charge(units)
        waits = [[window.seconds_until(needed) for needed in (1, 4, 100)] for window in windows]
        assert waits[0] == waits[1]


def test_a_request_larger_than_the_limit_runs_alone() -> None:
    clock = Clock()
    account = account_of(clock, tokens_per_minute=100)
    small = generation(account, 1)
    small.leave()
    error = rejection(lambda: generation(account, 30, 10_000))
    clock.now += retry_after(error)
    large = generation(account, 30, 10_000)
    assert rejection(lambda: generation(account, 1)) is not None, "everything is reserved"
    large.note_generated(5)
    large.leave()
    generation(account, 65).leave()
    assert rejection(lambda: generation(account, 1)) is not None


def test_rejected_requests_do_not_count() -> None:
    clock = Clock()
    account = account_of(clock, requests_per_minute=3, max_streams=1)
    first = generation(account, 1)
    for _ in range(10):
        error = rejection(lambda: generation(account, 1))
        assert "max_streams=1" in str(error)
    by_queue = begun(account)
    by_queue.close(429)
    first.leave()
    first.close(200)
    for _ in range(2):
        keyed = generation(account, 1)
        keyed.leave()
        keyed.close(500)
    assert "requests_per_minute=3" in str(rejection(lambda: begun(account)))
    assert account.usage.rejected == {"max_streams": 10, "queue": 1, "requests_per_minute": 1}
    assert account.usage.requests == {"2xx": 1, "4xx": 11, "5xx": 2}


def test_changed_limits_apply_at_once() -> None:
    clock = Clock()
    accounts = KeyAccounts(clock)
    accounts.update({"a": KeyLimits(requests_per_minute=10, max_streams=5)})
    account = accounts.of("a")
    in_flight = [generation(account, 1) for _ in range(4)]
    accounts.update({"a": KeyLimits(requests_per_minute=4, max_streams=2)})
    assert "requests_per_minute=4" in str(rejection(lambda: begun(account)))
    accounts.update({"a": KeyLimits(max_streams=2)})
    assert "max_streams=2" in str(rejection(lambda: generation(account, 1)))
    accounts.update({"a": KeyLimits(max_streams=5)})
    in_flight.append(generation(account, 1))
    assert rejection(lambda: generation(account, 1)) is not None
    for keyed in in_flight:
        keyed.leave()
    assert account.usage.num_in_flight == 0


def test_a_raised_limit_pays_debts_and_a_lowered_one_makes_none() -> None:
    clock = Clock()
    window = MinuteWindow(clock)
    window.limit = 10
    window.charge(25)
    assert window.seconds_until(1) == pytest.approx(120.15, abs=0.11 + 60 * 0.01)
    window.limit = 30
    assert window.seconds_until(5) == 0
    assert window.seconds_until(6) == pytest.approx(60.15, abs=0.11)
    window.limit = 5
    clock.now += 60.25
    assert window.seconds_until(5) == 0


def test_removed_names_are_forgotten_when_nothing_is_in_flight() -> None:
    accounts = KeyAccounts(Clock())
    accounts.update({"a": KeyLimits(), "b": KeyLimits()})
    keyed = generation(accounts.of("a"), 1)
    accounts.update({"c": KeyLimits()})
    assert set(accounts.usage()) == {"a", "c"}
    keyed.note_generated(1)
    keyed.leave()
    keyed.close(200)
    assert set(accounts.usage()) == {"c"}


# -- connections -------------------------------------------------------------------------------------------


def test_connections_count_for_the_key_of_their_latest_request() -> None:
    alice, bob = (account_of(Clock(), max_connections=limit) for limit in (2, 1))
    connections = [ConnectionOwner() for _ in range(3)]
    for connection in connections[:2]:
        alice.claim(connection)
        alice.claim(connection)
    error = rejection(lambda: alice.claim(connections[2]))
    assert error is not None
    assert error.headers["connection"] == "close"
    assert "max_connections=2" in str(error)
    assert (alice.num_connections, bob.num_connections) == (2, 0)
    bob.claim(connections[0])
    alice.claim(connections[2])
    assert (alice.num_connections, bob.num_connections) == (2, 1)
    assert rejection(lambda: bob.claim(connections[1])) is not None
    for connection in connections:
        connection.close()
        connection.close()
    assert (alice.num_connections, bob.num_connections) == (0, 0)
    alice.claim(connections[0])
    assert alice.num_connections == 0, "a closed connection does not count"


def test_a_lowered_connection_limit_ends_as_many_connections_as_necessary() -> None:
    account = account_of(Clock(), max_connections=5)
    connections = [ConnectionOwner() for _ in range(5)]
    for connection in connections:
        account.claim(connection)
    account.set_limits(KeyLimits(max_connections=2))
    rejected = [rejection(partial(account.claim, connection)) is not None for connection in connections]
    assert rejected == [True, True, True, False, False]
    assert account.num_connections == 2
