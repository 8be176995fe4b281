"""A model made of three hash functions: one for KV rows, one for drawn tokens and one for logprobs.

Its context is the sum of all KV rows so far, and a row depends on the context before it. One wrong row
therefore makes every later row and token wrong. The fake worker, which reads rows through block tables, and
the oracle, which does not use blocks, share this model.
"""

from dataclasses import dataclass

ROW_MASK = (1 << 30) - 1
FIRST_MASK = 1  # before the first token of an answer
_SALTS = 1 << 4
_POISONS = 1 << 6


@dataclass(frozen=True)
class Hints:
    """Facts about a request for the fake worker, encoded in `SamplingParams.seed`.

    Unlike a real model, this one depends on the cache salt, so that a block read from another tenant leads to
    a wrong token.
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


# Hashes of tuples of ints are the same in every process, unlike those of strings.


def empty_context(salt: int) -> int:
    return hash((salt, 1)) & ROW_MASK


def kv_row(context: int, token: int, position: int) -> int:
    return hash((context, token, position)) & ROW_MASK


def next_mask(mask: int, token: int) -> int:
    """Return the mask after a token. It stands for the state of a grammar, which depends on all of them."""
    return hash((mask, token, 2)) & ROW_MASK


def forced_token(mask: int, vocab: int) -> int | None:
    """Return the only token that the mask allows; None if it allows several."""
    choice, has_others = divmod(mask, 8)
    return None if has_others else choice % vocab


def draw_token(
    context: int, *, seed: int, choice: int, position: int, tally: int, mask: int, vocab: int
) -> int:
    """Return the next token. `tally` represents the state that penalties keep about the output so far."""
    forced = forced_token(mask, vocab)
    if forced is not None:
        return forced
    return (hash((context, seed, choice, position, tally, mask)) & ROW_MASK) % vocab


def logprob_of(context: int, token: int) -> float:
    """Return a fingerprint of the whole context.

    It reveals a wrong context even if the token is right by chance, as with a tiny vocabulary.
    """
    return -float(hash((context, token)) & ROW_MASK)
