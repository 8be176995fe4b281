"""Arrival patterns: when requests are sent.

In an open loop, the times do not depend on the answers, as with independent users. In a closed loop, a
fixed number of requests is in flight, and each answer triggers the next request. Only an open loop shows
that a server falls behind.
"""

import random
import re
from dataclasses import dataclass
from typing import TypeAlias

from octavo.errors import ConfigError


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals with exponential gaps: `rate` requests per second on average."""

    rate: float

    def times(self, count: int, gaps: random.Random) -> list[float]:
        now = 0.0
        times = []
        for _ in range(count):
            times.append(now)
            now += gaps.expovariate(self.rate)
        return times

    def __str__(self) -> str:
        return f"poisson:{self.rate:g}"


@dataclass(frozen=True)
class Steady:
    """One request every 1/rate seconds."""

    rate: float

    def times(self, count: int, gaps: random.Random) -> list[float]:
        return [number / self.rate for number in range(count)]

    def __str__(self) -> str:
        return f"steady:{self.rate:g}"


@dataclass(frozen=True)
class Bursts:
    """`size` requests together, repeated every `seconds` seconds."""

    size: int
    seconds: float

    def times(self, count: int, gaps: random.Random) -> list[float]:
        return [number // self.size * self.seconds for number in range(count)]

    def __str__(self) -> str:
        return f"bursts:{self.size}x{self.seconds:g}"


@dataclass(frozen=True)
class AtOnce:
    def times(self, count: int, gaps: random.Random) -> list[float]:
        return [0.0] * count

    def __str__(self) -> str:
        return "once"


@dataclass(frozen=True)
class Closed:
    """Always `concurrency` requests in flight: the next one is sent when an answer ends."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed:{self.concurrency}"


Open: TypeAlias = Poisson | Steady | Bursts | AtOnce
Arrivals: TypeAlias = Open | Closed


def parse_arrivals(text: str) -> Arrivals:
    """Parse what `str()` of an arrival pattern returns."""
    kind, _, value = text.partition(":")
    found: Arrivals | None = None
    if text == "once":
        found = AtOnce()
    elif re.fullmatch(r"\d*\.?\d+", value) and float(value) > 0:
        if kind == "poisson":
            found = Poisson(float(value))
        elif kind == "steady":
            found = Steady(float(value))
        elif kind == "closed" and value.isdigit():
            found = Closed(int(value))
    elif kind == "bursts" and (match := re.fullmatch(r"(\d+)x(\d*\.?\d+)", value)) and int(match[1]) > 0:
        found = Bursts(int(match[1]), float(match[2]))
    if found is None:
        raise ConfigError(
            f"{text!r} is not an arrival pattern: use poisson:RATE, steady:RATE, bursts:SIZExSECONDS,"
            " once or closed:CONCURRENCY"
        )
    return found
