"""Admission control: bounds on the queue. An unbounded queue turns overload into timeouts for all clients.

Each tenant has a guaranteed part of the queue (see `SharedRoom`), and a tenant without waiting sequences is
always accepted. So the queue may exceed its limits by one request per tenant.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from octavo.config import counted
from octavo.fairness.shared_room import SharedRoom
from octavo.fairness.tenant import Tenant
from octavo.server.http.errors import ApiError, invalid, too_many

HALF_LIFE = 10.0  # seconds after which a measurement has half its weight
MAX_RETRY_AFTER = 60.0  # seconds
MIN_RETRY_AFTER = 0.5  # seconds
DEFAULT_RETRY_AFTER = 5.0  # seconds, until a first sequence has left the queue
MAX_QUEUE_SECONDS = 3600.0  # that are reported
MAX_IDLE_RATES = 256  # of tenants without waiting sequences, whose rates are remembered


class DepartureRate:
    """The recent rate at which sequences, of one tenant or of all, leave the queue. Owned by `Admission`.

    It is an exponentially decaying average. Sequences and seconds decay alike, so it is unbiased from the
    first sequences on.
    """

    def __init__(self, now: float) -> None:
        self._num_sequences = 0.0
        self._seconds = 0.0
        self._at = now

    def advance(self, now: float, num_waiting: int) -> None:
        """Count time only while sequences wait: an empty queue has no rate."""
        if num_waiting:
            decay = 0.5 ** ((now - self._at) / HALF_LIFE)
            self._num_sequences *= decay
            self._seconds = self._seconds * decay + (1 - decay) * HALF_LIFE / math.log(2)
        self._at = now

    def note(self, num_sequences: int) -> None:
        self._num_sequences += num_sequences

    def seconds_for(self, num_sequences: float) -> float:
        """Return the time that `num_sequences` take at the current rate."""
        if not self._num_sequences:
            return DEFAULT_RETRY_AFTER
        return num_sequences * self._seconds / self._num_sequences


class Admission:
    """The queue as the front end counts it: sequences without a first token. Owned by the event loop."""

    def __init__(
        self, max_sequences: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sequences = SharedRoom(max_sequences)
        self._tokens = SharedRoom(max_tokens)
        self._rate = DepartureRate(clock())  # of all tenants
        self._rates: dict[str, DepartureRate] = {}  # by tenant: all with waiting sequences, and the idle ones
        self._idle: OrderedDict[str, None] = OrderedDict()  # the longest idle first
        self._clock = clock

    @property
    def num_sequences(self) -> int:
        return self._sequences.num_used

    @property
    def num_tokens(self) -> int:
        return self._tokens.num_used

    def check_queue(self, tenant: Tenant) -> None:
        """Raise 429 if the queue is full for the tenant. Called before the body is read."""
        if not self._has_room(tenant, 1, 0):
            raise self._busy(tenant)

    def check_size(self, num_sequences: int) -> None:
        """Raise 400 if the request exceeds the whole queue. Called before its prompts are built."""
        if num_sequences > self._sequences.limit:
            raise invalid(
                f"the request asks for {counted(num_sequences, 'sequence')};"
                f" the maximum is {self._sequences.limit}",
                "prompt",
            )

    def enter(self, tenant: Tenant, num_sequences: int, num_tokens: int) -> None:
        """Reserve room in the queue. The caller must release it with `leave`."""
        self.check_size(num_sequences)
        if num_tokens > self._tokens.limit:
            raise invalid(
                f"the prompts have {counted(num_tokens, 'token')}; the maximum is {self._tokens.limit}",
                "prompt",
            )
        if not self._has_room(tenant, num_sequences, num_tokens):
            raise self._busy(tenant)
        self._rates[tenant.name] = self._advanced(tenant)
        self._rate.advance(self._clock(), self._sequences.num_used)
        self._idle.pop(tenant.name, None)
        self._sequences.take(tenant, num_sequences)
        self._tokens.take(tenant, num_tokens)

    def leave(self, tenant: Tenant, num_sequences: int, num_tokens: int) -> None:
        self._advanced(tenant).note(num_sequences)
        self._rate.advance(self._clock(), self._sequences.num_used)
        self._rate.note(num_sequences)
        self._sequences.give(tenant, num_sequences)
        self._tokens.give(tenant, num_tokens)
        if not self._sequences.used_by(tenant):
            self._idle[tenant.name] = None
            if len(self._idle) > MAX_IDLE_RATES:
                del self._rates[self._idle.popitem(last=False)[0]]

    def retry_after(self, tenant: Tenant) -> float:
        """Return the seconds until half of the tenant's sequences have started, at their recent rate."""
        num_waiting = self._sequences.used_by(tenant)
        seconds = self._advanced(tenant).seconds_for(num_waiting / 2)
        return min(max(seconds, MIN_RETRY_AFTER), MAX_RETRY_AFTER)

    def queue_seconds(self, num_waiting: int) -> float:
        """Return the seconds until this many sequences have their first tokens, at the recent rate."""
        if not num_waiting:
            return 0.0
        self._rate.advance(self._clock(), self._sequences.num_used)
        return min(self._rate.seconds_for(num_waiting), MAX_QUEUE_SECONDS)

    def _has_room(self, tenant: Tenant, num_sequences: int, num_tokens: int) -> bool:
        """Tenants that are accepted beyond the limits must not cost others their guaranteed part."""
        if not self._sequences.used_by(tenant):
            return True
        return all(
            room.is_guaranteed(tenant, amount) or room.fits(tenant, amount)
            for room, amount in ((self._sequences, num_sequences), (self._tokens, num_tokens))
        )

    def _advanced(self, tenant: Tenant) -> DepartureRate:
        """Return the rate of the tenant as of now."""
        now = self._clock()
        rate = self._rates.get(tenant.name) or DepartureRate(now)
        rate.advance(now, self._sequences.used_by(tenant))
        return rate

    def _busy(self, tenant: Tenant) -> ApiError:
        what = "this key has too many waiting requests" if tenant.name else "too many requests are waiting"
        return too_many(f"the server is busy: {what}", self.retry_after(tenant), is_overload=True)
