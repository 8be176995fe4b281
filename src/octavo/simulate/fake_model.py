"""A model of three hash functions: what a token adds to KV, what is drawn, what is scored.

Its context is the sum of all KV rows so far, and a row depends on the context before it. So one wrong row
anywhere makes every later row and token wrong. It is shared by the fake worker, which reads rows through page
tables, and by the oracle, which has never heard of pages.
"""

from dataclasses import dataclass

ROW_MASK = (1 << 30) - 1
_SALTS = 1 << 4
_POISONS = 1 << 6


@dataclass(frozen=True)
class Hints:
    """What the simulation must tell the fake worker of a request. They travel in `SamplingParams.seed`.

    A real model knows no salt. This one does, so that a page read across tenants gives a wrong token.
    """

    serial: int  # makes the seed unique
    salt: int
    poison: int = 0  # 0: healthy; 1: fails in its first slice; 2 + k: fails when it draws token k

    def to_seed(self) -> int:
        return (self.serial * _POISONS + self.poison) * _SALTS + self.salt

    @classmethod
    def from_seed(cls, seed: int) -> "Hints":
        rest, salt = divmod(seed, _SALTS)
        serial, poison = divmod(rest, _POISONS)
        return cls(serial, salt, poison)


# Hashes of tuples of ints are the same in every process; those of strings are not.


def empty_context(salt: int) -> int:
    return hash((salt, 1)) & ROW_MASK


def kv_row(context: int, token: int, position: int) -> int:
    return hash((context, token, position)) & ROW_MASK


def draw_token(context: int, *, seed: int, choice: int, position: int, tally: int, vocab: int) -> int:
    """`tally` stands for what penalties remember of the output so far."""
    return (hash((context, seed, choice, position, tally)) & ROW_MASK) % vocab


def logprob_of(context: int, token: int) -> float:
    """A fingerprint of the whole context: it differs where a tiny vocabulary hides a wrong token."""
    return -float(hash((context, token)) & ROW_MASK)
