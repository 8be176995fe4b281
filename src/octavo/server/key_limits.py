"""Limits on what the API keys of one name may use together: requests, tokens, streams and connections."""

import math
import time
from collections.abc import Callable, Mapping

from octavo.fairness.minute_window import DEFAULT_RETRY_AFTER
from octavo.observe.key_usage import QUEUE, KeyUsage
from octavo.server.budget_keepers import BudgetTransport
from octavo.server.http.connection_owner import ConnectionOwner
from octavo.server.http.error_pace import ErrorPace
from octavo.server.http.errors import ApiError, too_many
from octavo.server.http.key_file import KeyLimits
from octavo.server.key_leases import KeyLeases
from octavo.server.unit_limits import LimitReached, UnitLimit, UnitLimits, local_limits


class KeyAccount:
    """What the keys of one name use. Changed by its `KeyedRequest`s and by its connections."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, unit_limits: UnitLimits | None = None
    ) -> None:
        """`unit_limits` are those that hold over several front ends; by default, this server is alone."""
        self.usage = KeyUsage()
        self.num_connections = 0
        unit_limits = unit_limits or local_limits(clock)
        self.requests, self.tokens = unit_limits.requests, unit_limits.tokens
        self.streams = unit_limits.streams
        self.errors = ErrorPace(clock)
        self.set_limits(KeyLimits())

    def set_limits(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.requests.limit = limits.requests_per_minute
        self.tokens.limit = limits.tokens_per_minute
        self.streams.limit = limits.max_streams

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

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, transport: BudgetTransport | None = None
    ) -> None:
        """With a transport, the limits hold over all front ends together, except `max_connections`."""
        self._clock = clock
        self._leases = None if transport is None else KeyLeases(transport, clock)
        self.other_errors = ErrorPace(clock)  # of requests without a valid key
        self._accounts: dict[str, KeyAccount] = {}
        self._names: frozenset[str] = frozenset()  # that have a key

    def update(self, limits: Mapping[str, KeyLimits]) -> None:
        """Set the names and their limits. New limits apply to the next requests."""
        self._names = frozenset(limits)
        for name, limits_of_name in limits.items():
            if name not in self._accounts:
                unit_limits = None if self._leases is None else self._leases.limits_of(name)
                self._accounts[name] = KeyAccount(self._clock, unit_limits)
            self._accounts[name].set_limits(limits_of_name)
        self._drop_removed()

    async def keep_leases(self) -> None:
        """Report to the keepers what is used. Returns at once if this server is alone."""
        if self._leases is not None:
            await self._leases.run()

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

    async def begin(
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
            await self._reserve(account, "requests_per_minute", account.requests, 1)
            self._is_counted = True
            self._bucket = account.requests.spend(1, num_reserved=1)

    # -- a generation request --------------------------------------------------------------------------

    async def enter(self) -> None:
        """Count an in-flight generation request. Raises 429 above max_streams."""
        account = self._account
        if account is None:
            return
        await self._reserve(account, "max_streams", account.streams, 1)
        account.usage.num_in_flight += 1
        self._is_in_flight = True

    async def reserve(self, num_prompt: int, num_answer: int) -> None:
        """Reserve tokens of prompts and answers. Raises 429 above tokens_per_minute."""
        account = self._account
        if account is None:
            return
        num_tokens = num_prompt + num_answer
        self._num_reserved = await self._reserve(account, "tokens_per_minute", account.tokens, num_tokens)
        self._num_prompt = num_prompt

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
        account.tokens.release(self._num_reserved)
        self._num_reserved = 0
        if self._is_in_flight:
            self._is_in_flight = False
            account.usage.num_in_flight -= 1
            account.streams.release(1)

    def _charge(self, num_tokens: int) -> None:
        if self._account is None:
            return
        num_reserved = min(num_tokens, self._num_reserved)
        self._num_reserved -= num_reserved
        self._account.tokens.spend(num_tokens, num_reserved=num_reserved)

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

    async def _reserve(self, account: KeyAccount, name: str, limit: UnitLimit, units: int) -> int:
        try:
            return await limit.reserve(units)
        except LimitReached as reached:
            assert limit.limit is not None
            self._is_rejected = True
            advice = (
                "wait until a request has finished"
                if limit is account.streams
                else f"retry in {math.ceil(reached.seconds)} s"
            )
            raise account.reject(name, limit.limit, reached.seconds, advice) from None
