"""How much may wait. A queue without bounds only turns overload into timeouts for everybody."""

import math
import time
from collections.abc import Callable

from octavo.config import counted
from octavo.server.errors import ApiError, invalid, too_many

HALF_LIFE = 10.0  # seconds after which a measurement counts half
LONGEST_RETRY = 60.0


class Rate:
    """Events per second, of late."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._weight = 0.0
        self._at = clock()

    def note(self, events: int) -> None:
        self._decay()
        self._weight += events

    @property
    def per_second(self) -> float:
        self._decay()
        return self._weight * math.log(2) / HALF_LIFE

    def _decay(self) -> None:
        now = self._clock()
        self._weight *= 0.5 ** ((now - self._at) / HALF_LIFE)
        self._at = now


class Admission:
    """The queue as the front end counts it: sequences that have not had their first token."""

    def __init__(
        self, max_sequences: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self.num_sequences = 0
        self.num_tokens = 0
        self._departures = Rate(clock)

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
        self.num_sequences += num_sequences
        self.num_tokens += num_tokens

    def leave(self, num_sequences: int, num_tokens: int) -> None:
        self.num_sequences -= num_sequences
        self.num_tokens -= num_tokens
        self._departures.note(num_sequences)

    @property
    def retry_after(self) -> float:
        """Seconds until half of those who wait now have begun, at the pace of late."""
        pace = self._departures.per_second
        return LONGEST_RETRY if pace <= 0 else min(max(self.num_sequences / 2 / pace, 0.5), LONGEST_RETRY)

    def _refusal(self) -> ApiError:
        return too_many("the server is busy: too many requests are waiting", self.retry_after)
