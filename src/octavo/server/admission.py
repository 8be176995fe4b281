"""How much may wait. A queue without bounds only turns overload into timeouts for everybody."""

import math
import time
from collections.abc import Callable

from octavo.config import counted
from octavo.server.http.errors import ApiError, invalid, too_many

HALF_LIFE = 10.0  # seconds after which a measurement counts half
LONGEST_RETRY = 60.0
UNKNOWN_RETRY = 5.0  # before anything has ever been served


class Pace:
    """Events per second, of late. Events and seconds fade alike, so that the first few tell the truth too."""

    def __init__(self) -> None:
        self._events = 0.0
        self._seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        fading = 0.5 ** (seconds / HALF_LIFE)
        self._events *= fading
        self._seconds = self._seconds * fading + (1 - fading) * HALF_LIFE / math.log(2)

    def note(self, events: int) -> None:
        self._events += events

    def seconds_for(self, events: float) -> float:
        if not self._events:
            return UNKNOWN_RETRY
        return events * self._seconds / self._events


class Admission:
    """The queue as the front end counts it: sequences that have not had their first token."""

    def __init__(
        self, max_sequences: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self.num_sequences = 0
        self.num_tokens = 0
        self._departures = Pace()
        self._clock = clock
        self._at = clock()

    def check_door(self) -> None:
        """Before a body is read: is there room at all?"""
        if self.num_sequences >= self._max_sequences:
            raise self._refusal()

    def check_size(self, num_sequences: int) -> None:
        """Before anything is made of a request: could it ever wait here?"""
        if num_sequences > self._max_sequences:
            raise invalid(
                f"the request asks for {counted(num_sequences, 'sequence')};"
                f" at most {self._max_sequences} may wait",
                "prompt",
            )

    def enter(self, num_sequences: int, num_tokens: int) -> None:
        """Claim room, which must be given back with `leave`."""
        self.check_size(num_sequences)
        if num_tokens > self._max_tokens:
            raise invalid(
                f"the prompts have {counted(num_tokens, 'token')}; at most {self._max_tokens} may wait",
                "prompt",
            )
        if (
            self.num_sequences + num_sequences > self._max_sequences
            or self.num_tokens + num_tokens > self._max_tokens
        ):
            raise self._refusal()
        self._pass_time()
        self.num_sequences += num_sequences
        self.num_tokens += num_tokens

    def leave(self, num_sequences: int, num_tokens: int) -> None:
        self._pass_time()
        self.num_sequences -= num_sequences
        self.num_tokens -= num_tokens
        self._departures.note(num_sequences)

    @property
    def retry_after(self) -> float:
        """Seconds until half of those who wait now have begun, at the pace of late."""
        self._pass_time()
        return min(max(self._departures.seconds_for(self.num_sequences / 2), 0.5), LONGEST_RETRY)

    def _pass_time(self) -> None:
        """Only while somebody waits: an empty queue says nothing about how fast it could move."""
        now = self._clock()
        if self.num_sequences:
            self._departures.pass_time(now - self._at)
        self._at = now

    def _refusal(self) -> ApiError:
        return too_many("the server is busy: too many requests are waiting", self.retry_after)
