"""Admission control: bounds on the queue. An unbounded queue turns overload into timeouts for all clients."""

import math
import time
from collections.abc import Callable

from octavo.config import counted
from octavo.server.http.errors import ApiError, invalid, too_many

HALF_LIFE = 10.0  # seconds after which a measurement has half its weight
MAX_RETRY_AFTER = 60.0  # seconds
DEFAULT_RETRY_AFTER = 5.0  # seconds, until a first sequence has left the queue


class DecayingRate:
    """Recent events per second, as an exponentially decaying average.

    Events and seconds decay alike, so the rate is unbiased from the first events on.
    """

    def __init__(self) -> None:
        self._events = 0.0
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        decay = 0.5 ** (seconds / HALF_LIFE)
        self._events *= decay
        self._seconds = self._seconds * decay + (1 - decay) * HALF_LIFE / math.log(2)

    def note(self, events: int) -> None:
        self._events += events

    def seconds_for(self, events: float) -> float:
        """Return the time that `events` take at the current rate."""
        if not self._events:
            return DEFAULT_RETRY_AFTER
        return events * self._seconds / self._events


class Admission:
    """The queue as the front end counts it: sequences without a first token."""

    def __init__(
        self, max_sequences: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self.num_sequences = 0
        self.num_tokens = 0
        self._departures = DecayingRate()
        self._clock = clock
        self._at = clock()

    def check_queue(self) -> None:
        """Raise 429 if the queue is full. Called before the body is read."""
        if self.num_sequences >= self._max_sequences:
            raise self._busy()

    def check_size(self, num_sequences: int) -> None:
        """Raise 400 if the request exceeds the whole queue. Called before its prompts are built."""
        if num_sequences > self._max_sequences:
            raise invalid(
                f"the request asks for {counted(num_sequences, 'sequence')};"
                f" the maximum is {self._max_sequences}",
                "prompt",
            )

    def enter(self, num_sequences: int, num_tokens: int) -> None:
        """Reserve room in the queue. The caller must release it with `leave`."""
        self.check_size(num_sequences)
        if num_tokens > self._max_tokens:
            raise invalid(
                f"the prompts have {counted(num_tokens, 'token')}; the maximum is {self._max_tokens}",
                "prompt",
            )
        if (
            self.num_sequences + num_sequences > self._max_sequences
            or self.num_tokens + num_tokens > self._max_tokens
        ):
            raise self._busy()
        self._advance()
        self.num_sequences += num_sequences
        self.num_tokens += num_tokens

    def leave(self, num_sequences: int, num_tokens: int) -> None:
        self._advance()
        self.num_sequences -= num_sequences
        self.num_tokens -= num_tokens
        self._departures.note(num_sequences)

    @property
    def retry_after(self) -> float:
        """Seconds until half of the queue has started, at the recent rate."""
        self._advance()
        return min(max(self._departures.seconds_for(self.num_sequences / 2), 0.5), MAX_RETRY_AFTER)

    def _advance(self) -> None:
        """Count time only while the queue is not empty: an empty queue has no rate."""
        now = self._clock()
        if self.num_sequences:
            self._departures.advance(now - self._at)
        self._at = now

    def _busy(self) -> ApiError:
        return too_many("the server is busy: too many requests are waiting", self.retry_after)
