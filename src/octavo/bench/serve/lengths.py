"""Length distributions of prompts and answers.

Lengths are not drawn independently: n requests get n quantiles of the distribution, shuffled by the seed.
So every seed produces the same amount of work, and runs are comparable.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from octavo.errors import ConfigError


class Lengths(Protocol):
    """A distribution of integers. `str()` returns its command-line form."""

    def quantile(self, part: float) -> int: ...


@dataclass(frozen=True)
class Fixed:
    tokens: int

    def quantile(self, part: float) -> int:
        return self.tokens

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform: as many lengths between 16 and 32 as between 512 and 1,024."""

    low: int
    high: int

    def quantile(self, part: float) -> int:
        return round(self.low * math.pow(self.high / self.low, part))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True)
class Mix:
    """Several fixed lengths, each for a share of the requests."""

    parts: tuple[tuple[float, int], ...]

    def quantile(self, part: float) -> int:
        total = 0.0
        for share, tokens in self.parts:
            total += share
            if part < total:
                return tokens
        return self.parts[-1][1]

    def __str__(self) -> str:
        return "+".join(f"{share:g}*{tokens}" for share, tokens in self.parts)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal: many short lengths and a long tail, clipped at both ends."""

    mean: float
    sigma: float  # of the logarithm
    low: int
    high: int
    name: str = ""

    def quantile(self, part: float) -> int:
        median = self.mean * math.exp(-(self.sigma**2) / 2)
        tokens = median * math.exp(self.sigma * NormalDist().inv_cdf(part))
        return min(max(round(tokens), self.low), self.high)

    def __str__(self) -> str:
        return self.name or f"lognormal:{self.mean:g},{self.sigma:g},{self.low},{self.high}"


# The means are those of the ShareGPT conversations in the PagedAttention paper (Kwon et al., 2023, figure
# 11): 161 tokens in, 338 out. The widths are our choice: 5 % of the prompts are longer than about seven times
# the median. The bounds keep a request within a context of 2,048 tokens.
CONVERSATION_PROMPT = LogNormal(161, 1.2, 4, 1024, "conversation")
CONVERSATION_OUTPUT = LogNormal(338, 0.9, 4, 1024, "conversation")


def shuffled_lengths(lengths: Lengths, count: int, order: random.Random) -> list[int]:
    """Return `count` quantiles: the same lengths for every seed, in another order."""
    tokens = [lengths.quantile((number + 0.5) / count) for number in range(count)]
    order.shuffle(tokens)
    return tokens


SHARE = r"\d*\.?\d+\*\d+"


def parse_lengths(text: str, conversation: Lengths) -> Lengths:
    """Parse `128`, `16-1024`, `0.75*1024+0.25*128` or `conversation`."""
    found: Lengths | None = None
    if text == "conversation":
        found = conversation
    elif re.fullmatch(r"\d+", text):
        found = Fixed(int(text))
    elif match := re.fullmatch(r"(\d+)-(\d+)", text):
        found = LogUniform(int(match[1]), int(match[2]))
    elif re.fullmatch(rf"{SHARE}(\+{SHARE})*", text):
        found = Mix(tuple(_share(part) for part in text.split("+")))
    if found is None or not _is_valid(found):
        raise ConfigError(
            f"{text!r} is not a length: use tokens (128), a range (16-1024), shares that add up to 1"
            " (0.75*1024+0.25*128), or conversation"
        )
    return found


def _share(text: str) -> tuple[float, int]:
    share, _, tokens = text.partition("*")
    return float(share), int(tokens)


def _is_valid(lengths: Lengths) -> bool:
    if isinstance(lengths, LogUniform):
        return 1 <= lengths.low <= lengths.high
    if isinstance(lengths, Mix):
        return _all_positive([tokens for _, tokens in lengths.parts]) and math.isclose(
            sum(share for share, _ in lengths.parts), 1.0
        )
    return lengths.quantile(0.5) >= 1


def _all_positive(tokens: Sequence[int]) -> bool:
    return min(tokens) >= 1
