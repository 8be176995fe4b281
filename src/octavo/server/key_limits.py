"""Limits on what the API keys of one name may use together: requests, tokens, streams and connections."""

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from octavo.observe.key_usage import QUEUE, KeyUsage
from octavo.server.http.connection_owner import ConnectionOwner
from octavo.server.http.error_pace import ErrorPace
from octavo.server.http.errors import ApiError, too_many
from octavo.server.http.key_file import KeyLimits

BUCKETS_PER_SECOND = 4
# A bucket is kept until 60 s after its end, so that no 60 s contain more than the limit.
BUCKETS_KEPT = 60 * BUCKETS_PER_SECOND + 1
# If only the end of another request can help. That time is unknown.
DEFAULT_RETRY_AFTER = 1.0  # seconds


class MinuteWindow:
    """Units charged within the last 60 s, in buckets of 0.25 s. Owned by a `KeyAccount`.

    A charge beyond the limit becomes a debt. It is paid when old buckets leave the window, so the rate is
    that of the limit in the long run.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit: int | None = None
        self.num_reserved = 0  # units that may still be charged by requests that were accepted
        self._clock = clock
        self._buckets: deque[tuple[int, int]] = deque()  # index and units, oldest first
        self._num_used = 0  # the sum of the buckets
        self._num_owed = 0

    def seconds_until(self, units: int) -> float:
        """Return the time until `units` fit, or 0 if they fit now. More than the limit count as the limit."""
        if self.limit is None:
            return 0.0
        now = self._clock()
        self._advance(_index(now))
        if self._fits(units):
            return 0.0
        ahead = copy.copy(self)
        ahead._buckets = self._buckets.copy()
        ahead._skip_cycles((ahead._num_excess(units) - 1) // self.limit)
        left = _index(now)
        while ahead._buckets and not ahead._fits(units):
            left = ahead._drop_oldest()
        seconds = left / BUCKETS_PER_SECOND - now
        # Whole milliseconds, rounded up: the units fit after this time.
        return max(
            (math.floor(seconds * 1000) + 1) / 1000, 0.0 if ahead._fits(units) else DEFAULT_RETRY_AFTER
        )

    def charge(self, units: int) -> int | None:
        """Charge units, and return their bucket for `refund`; None without a limit."""
        if self.limit is None:
            return None
        index = _index(self._clock())
        self._advance(index)
        fitting = min(units, self._room)
        self._add(index, fitting)
        self._num_owed += units - fitting
        return index

    def refund(self, units: int, index: int) -> None:
        """Remove units from a bucket, as if they had never been charged."""
        for position, (other, charged) in enumerate(self._buckets):
            if other == index:
                units = min(units, charged)
                self._buckets[position] = index, charged - units
                self._num_used -= units

    @property
    def _room(self) -> int:
        assert self.limit is not None
        return max(0, self.limit - self._num_used)

    def _num_excess(self, units: int) -> int:
        """Return how many units must leave the window before `units` fit."""
        assert self.limit is not None
        num_taken = self._num_used + self._num_owed + self.num_reserved
        return num_taken + min(units, self.limit) - self.limit

    def _fits(self, units: int) -> bool:
        return self._num_excess(units) <= 0

    def _advance(self, index: int) -> None:
        if self._num_owed:
            self._skip_cycles((index - self._buckets[-1][0]) // BUCKETS_KEPT if self._buckets else 0)
        while self._buckets and self._buckets[0][0] + BUCKETS_KEPT <= index:
            self._drop_oldest()
        if self._num_owed:  # the limit may have been raised
            self._pay(index)

    def _skip_cycles(self, max_cycles: int) -> None:
        """Drop each bucket up to `max_cycles` times, at the cost of one time.

        While the window is full and the debt exceeds it, an equal bucket replaces every bucket that leaves.
        """
        assert self.limit is not None
        cycles = min(max_cycles, self._num_owed // self.limit)
        if self._num_used == self.limit and cycles > 0:
            self._num_owed -= cycles * self.limit
            self._buckets = deque((index + cycles * BUCKETS_KEPT, units) for index, units in self._buckets)

    def _drop_oldest(self) -> int:
        """Remove the oldest bucket, pay debts with its room, and return the index at which this happens."""
        index, units = self._buckets.popleft()
        self._num_used -= units
        self._pay(index + BUCKETS_KEPT)
        return index + BUCKETS_KEPT

    def _pay(self, index: int) -> None:
        paid = min(self._num_owed, self._room)
        self._num_owed -= paid
        self._add(index, paid)

    def _add(self, index: int, units: int) -> None:
        if not units:
            return
        self._num_used += units
        if self._buckets and self._buckets[-1][0] == index:
            self._buckets[-1] = index, self._buckets[-1][1] + units
        else:
            self._buckets.append((index, units))


def _index(now: float) -> int:
    return math.floor(now * BUCKETS_PER_SECOND)


class KeyAccount:
    """What the keys of one name use. Changed by its `KeyedRequest`s and by its connections."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.usage = KeyUsage()
        self.num_connections = 0
        self.requests = MinuteWindow(clock)
        self.tokens = MinuteWindow(clock)
        self.errors = ErrorPace(clock)
        self.set_limits(KeyLimits())

    def set_limits(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.requests.limit = limits.requests_per_minute
        self.tokens.limit = limits.tokens_per_minute

    def claim(self, connection: ConnectionOwner) -> None:
        """Count the connection. Raises 429 and closes the connection if there are too many."""
        is_new = connection.current is not self
        limit = self.limits.max_connections
        if limit is not None and self.num_connections + is_new > limit:
            if not is_new:  # the limit was lowered: this one ends, and the others continue
                connection.release()
            advice = "close a connection or use an open one again"
            error = self.reject("max_connections", limit, DEFAULT_RETRY_AFTER, advice)
            error.headers["connection"] = "close"
            raise error
        if is_new:
            connection.assign(self)

    def reject(self, limit: str, value: int, seconds: float, advice: str) -> ApiError:
        """Count a rejection and return its 429."""
        self.usage.rejected[limit] += 1
        return too_many(f"this API key has reached its limit {limit}={value}: {advice}", seconds)


class KeyAccounts:
    """The accounts of all names. Owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.other_errors = ErrorPace(clock)  # of requests without a valid key
        self._accounts: dict[str, KeyAccount] = {}
        self._names: frozenset[str] = frozenset()  # that have a key

    def update(self, limits: Mapping[str, KeyLimits]) -> None:
        """Set the names and their limits. New limits apply to the next requests."""
        self._names = frozenset(limits)
        for name, limits_of_name in limits.items():
            if name not in self._accounts:
                self._accounts[name] = KeyAccount(self._clock)
            self._accounts[name].set_limits(limits_of_name)
        self._drop_removed()

    def of(self, name: str) -> KeyAccount:
        """Return the account of a name that has a key."""
        return self._accounts[name]

    def usage(self) -> dict[str, KeyUsage]:
        """Return the usage by name. A removed name is included while it has in-flight requests."""
        self._drop_removed()
        return {name: account.usage for name, account in self._accounts.items()}

    def _drop_removed(self) -> None:
        removed = self._accounts.keys() - self._names
        for name in removed:
            if not self._accounts[name].usage.num_in_flight:
                del self._accounts[name]


class KeyedRequest:
    """One HTTP request, and what it takes of its key's limits. Does nothing on a server without keys.

    Mutated by the task that handles the request. The request's record closes it.
    """

    __slots__ = (
        "_account",
        "_bucket",
        "_is_counted",
        "_is_in_flight",
        "_is_rejected",
        "_num_prompt",
        "_num_reserved",
        "errors",
        "name",
    )

    def __init__(self, errors: ErrorPace | None = None) -> None:
        """`errors` are those of requests without a valid key; None on a server without keys."""
        self.name: str | None = None  # of the key, also if the key has expired
        self.errors = errors
        self._account: KeyAccount | None = None
        self._is_counted = False  # in requests_per_minute
        self._bucket: int | None = None  # of requests_per_minute, if there is a limit
        self._is_in_flight = False
        self._is_rejected = False  # by a limit of the key
        self._num_prompt = 0
        self._num_reserved = 0  # of tokens_per_minute

    def begin(
        self, account: KeyAccount, connection: ConnectionOwner | None = None, *, is_counted: bool
    ) -> None:
        """Count the request and its connection. Raises 429 above max_connections or requests_per_minute."""
        self._account = account
        self.errors = account.errors
        if connection is not None:
            try:
                account.claim(connection)
            except ApiError:
                self._is_rejected = True
                raise
        if is_counted:
            self._check_window(account, "requests_per_minute", account.requests, 1)
            self._is_counted = True
            self._bucket = account.requests.charge(1)

    # -- a generation request --------------------------------------------------------------------------

    def enter(self) -> None:
        """Count an in-flight generation request. Raises 429 above max_streams."""
        account = self._account
        if account is None:
            return
        limit = account.limits.max_streams
        if limit is not None and account.usage.num_in_flight >= limit:
            self._is_rejected = True
            raise account.reject(
                "max_streams", limit, DEFAULT_RETRY_AFTER, "wait until a request has finished"
            )
        account.usage.num_in_flight += 1
        self._is_in_flight = True

    def reserve(self, num_prompt: int, num_answer: int) -> None:
        """Reserve tokens of prompts and answers. Raises 429 above tokens_per_minute."""
        account = self._account
        if account is None:
            return
        self._check_window(account, "tokens_per_minute", account.tokens, num_prompt + num_answer)
        limit = account.tokens.limit
        self._num_prompt = num_prompt
        self._num_reserved = num_prompt + num_answer if limit is None else min(num_prompt + num_answer, limit)
        account.tokens.num_reserved += self._num_reserved

    def submit(self) -> None:
        """Charge the prompts, whose tokens were reserved."""
        self._charge(self._num_prompt)

    def note_first(self, num_prompt: int) -> None:
        """Record that a prompt has produced a first token."""
        if self._account is not None:
            self._account.usage.prompt_tokens += num_prompt

    def note_generated(self, num_tokens: int) -> None:
        """Record and charge generated tokens."""
        if self._account is not None:
            self._account.usage.generation_tokens += num_tokens
            self._charge(num_tokens)

    def leave(self) -> None:
        """End the generation request: release what is left of its reservation."""
        account = self._account
        if account is None:
            return
        account.tokens.num_reserved -= self._num_reserved
        self._num_reserved = 0
        account.usage.num_in_flight -= self._is_in_flight
        self._is_in_flight = False

    def _charge(self, num_tokens: int) -> None:
        if self._account is None:
            return
        tokens = self._account.tokens
        num_reserved = min(num_tokens, self._num_reserved)
        self._num_reserved -= num_reserved
        tokens.num_reserved -= num_reserved
        tokens.charge(num_tokens)

    # -- when the request is over ----------------------------------------------------------------------

    def close(self, status: int | None) -> None:
        """Count the response. A request that a limit has rejected does not count as a request per minute."""
        account = self._account
        if account is None:
            return
        account.usage.requests["none" if status is None else f"{status // 100}xx"] += 1
        if status == 429 and self._is_counted:
            if self._bucket is not None:
                account.requests.refund(1, self._bucket)
            if not self._is_rejected:
                account.usage.rejected[QUEUE] += 1

    def _check_window(self, account: KeyAccount, name: str, window: MinuteWindow, units: int) -> None:
        seconds = window.seconds_until(units)
        if seconds:
            assert window.limit is not None
            self._is_rejected = True
            advice = f"retry in {math.ceil(seconds)} s"
            raise account.reject(name, window.limit, seconds, advice)
