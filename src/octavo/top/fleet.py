"""What `octavo top` has received about the replicas of a server."""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.status import ReplicaStatus
from octavo.view import FleetEvent

MAX_COUNTS = 64  # per replica; the server sends at most one event per second
MIN_SECONDS = 0.5  # between two counts: a new connection starts with an event, however recent the last one is
RATE_SECONDS = 2.5  # period of tokens per second and load
HIT_SECONDS = 60.0  # period of the hit rate; prompts are less frequent than tokens


class Counts(NamedTuple):
    """What a replica had counted at a time of the server's clock."""

    time: float
    tokens: int
    step_seconds: float
    prompt_tokens: int
    prompt_tokens_cached: int

    @classmethod
    def of(cls, time: float, replica: ReplicaStatus) -> "Counts":
        return cls(
            time,
            replica.tokens,
            replica.step_seconds,
            replica.prompt_tokens,
            replica.prompt_tokens_cached,
        )

    def precedes(self, later: "Counts") -> bool:
        """Return whether `later` can be of the same replica of the same server: no count has decreased."""
        return all(before <= after for before, after in zip(self, later, strict=True))


@dataclass(frozen=True)
class Rates:
    """Rates of a replica. None: there is nothing to compute them from yet."""

    tokens_per_second: float | None = None
    load: float | None = None  # fraction of the time that steps took
    hits: float | None = None  # fraction of the prompt tokens that were found in the prefix cache
    loads: tuple[float, ...] = ()  # between two events each


@dataclass
class FleetHistory:
    """Only `note` and `forget` change it."""

    latest: FleetEvent | None = None
    _counts: dict[str, deque[Counts]] = field(default_factory=dict)

    def note(self, event: FleetEvent) -> None:
        """Add an event. Replicas that it does not have are forgotten."""
        known: dict[str, deque[Counts]] = {}
        for replica in event.replicas:
            counts = Counts.of(event.time, replica)
            past = self._counts.get(replica.name)
            if past is None or not past[-1].precedes(counts):
                past = deque(maxlen=MAX_COUNTS)
            if not past or counts.time - past[-1].time >= MIN_SECONDS:
                past.append(counts)
            known[replica.name] = past
        self._counts, self.latest = known, event

    def forget(self) -> None:
        """Forget everything, because the connection to the server is lost."""
        self.latest = None
        self._counts = {}

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return () if self.latest is None else self.latest.replicas

    @property
    def names(self) -> list[str]:
        """The names of the replicas in natural order."""
        return sorted([replica.name for replica in self.replicas], key=natural)

    def rates(self, replica: ReplicaStatus) -> Rates:
        past = self._counts[replica.name]
        last = past[-1]
        recent, longer = _first_since(past, RATE_SECONDS), _first_since(past, HIT_SECONDS)
        hits = _hits(longer, last)
        if hits is None:  # no prompts recently: since the start
            hits = _hits(Counts(0.0, 0, 0.0, 0, 0), last)
        if recent is last:
            return Rates(hits=hits)
        tokens = (last.tokens - recent.tokens) / (last.time - recent.time)
        pairs = zip(past, list(past)[1:], strict=False)
        return Rates(tokens, _load(recent, last), hits, tuple([_load(*pair) for pair in pairs]))


def _first_since(past: Iterable[Counts], seconds: float) -> Counts:
    """Return the first counts of the period that ends with the last ones, or else the previous ones."""
    *earlier, last = past
    otherwise = earlier[-1] if earlier else last
    return next((counts for counts in earlier if last.time - counts.time <= seconds), otherwise)


def _load(first: Counts, last: Counts) -> float:
    return min(1.0, (last.step_seconds - first.step_seconds) / (last.time - first.time))


def _hits(first: Counts, last: Counts) -> float | None:
    prompts = last.prompt_tokens - first.prompt_tokens
    cached = last.prompt_tokens_cached - first.prompt_tokens_cached
    return None if prompts == 0 else min(1.0, cached / prompts)


def natural(name: str) -> list[tuple[str, int, str]]:
    """Return a sort key that puts r2 before r10."""
    parts = [(text, digits.lstrip("0")) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]
    return [(text, len(digits), digits) for text, digits in parts]
