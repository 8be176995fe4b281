"""A job over a dataset: which columns it reads and writes, and the key and the seed of each row.

Nothing here depends on batches, actors or the order of rows.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import ConfigError, RequestError
from octavo.protocol import GrammarSpec, SamplingParams

DIGEST_BYTES = 16
SEED_BITS = 63

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """Names of columns. Exactly one of `prompt` and `messages` is set."""

    prompt: str | None
    messages: str | None
    key: str | None  # None: the key of a row is its prompt
    seed: str | None  # None: every seed is derived
    prefix: str  # of the columns that the job adds

    @property
    def request(self) -> str:
        """Return the column that contains the prompts or conversations."""
        name = self.messages if self.prompt is None else self.prompt
        assert name is not None
        return name

    @property
    def read(self) -> tuple[str, ...]:
        """Return every column that the answers depend on."""
        return tuple(dict.fromkeys(name for name in (self.key, self.request, self.seed) if name is not None))

    @property
    def replaces_seed(self) -> bool:
        """Return whether the seeds that the job adds replace those of the dataset."""
        return self.seed == self.prefix + "seed"

    def added(self, *, has_logprobs: bool) -> tuple[str, ...]:
        """Return the columns that the job adds, with their prefix."""
        names = ["text", "finish_reason", "error", "token_ids", "num_prompt_tokens", "num_tokens"]
        names += ["reasoning"] if self.messages is not None else []
        names += ["logprobs"] if has_logprobs else []
        return tuple(self.prefix + name for name in (*names, "seed", "fingerprint"))


@dataclass(frozen=True)
class BatchJob:
    """What decides the answers, apart from the rows and the checkpoint."""

    columns: Columns
    params: SamplingParams | None  # None: the defaults of the checkpoint
    grammar: GrammarSpec | None
    seed: int

    @property
    def has_logprobs(self) -> bool:
        return self.params is not None and self.params.logprobs is not None

    def complete(self, default: SamplingParams) -> SamplingParams:
        """Return the parameters of all rows, without a seed."""
        params = default if self.params is None else self.params
        grammar = params.grammar if self.grammar is None else self.grammar
        return msgspec.structs.replace(params, grammar=grammar, seed=None)

    def seed_of(self, row: Row) -> int:
        """Return the seed of a row: its own, or a hash of the job's seed and the row's key."""
        given = None if self.columns.seed is None else row[self.columns.seed]
        if given is not None:
            if isinstance(given, bool) or not isinstance(given, int):
                raise RequestError(f"a seed must be an integer, not {type(given).__name__}", "seed")
            return given
        secret = self.seed.to_bytes(8, "big", signed=True)
        named = hashlib.blake2b(self._key_bytes(row), key=secret, person=b"octavo row")
        return int.from_bytes(named.digest()[:8], "big") >> (64 - SEED_BITS)

    def request_digest(self, row: Row) -> bytes:
        """Return a hash of what the row's answer depends on: of two rows with one key, it tells whether they
        have one answer."""
        if self.columns.seed is None:
            return self._digest_with(row, None)
        try:
            return self._digest_with(row, self.seed_of(row))
        except RequestError:  # the row's answer is this error
            return self._digest_with(row, None)

    def output_digest(self, row: Row) -> bytes:
        """Return the same hash for a row of the output, where the job's seeds may have replaced the row's."""
        if self.columns.replaces_seed:
            return self._digest_with(row, row[self.columns.prefix + "seed"])
        return self.request_digest(row)

    def _digest_with(self, row: Row, seed: int | None) -> bytes:
        key = None if self.columns.key is None else row[self.columns.key]
        return _digest([key, row[self.columns.request], seed])

    def _key_bytes(self, row: Row) -> bytes:
        if self.columns.key is None:
            return canonical(row[self.columns.request])
        return canonical(row[self.columns.key])


def check_params(params: SamplingParams | None) -> None:
    """Reject parameters whose result does not fit in one row."""
    if params is None:
        return
    if not isinstance(params, SamplingParams):
        raise ConfigError("params must be SamplingParams, as in SamplingParams(temperature=0)")
    if params.seed is not None:
        raise ConfigError("every row has its own seed: set seed or seed_column of generate, not of params")
    if params.n != 1:
        raise ConfigError("n must be 1: for several answers, repeat a row with different keys")
    if params.logprobs not in (None, 0) or params.prompt_logprobs is not None:
        raise ConfigError("logprobs must be 0 (of the chosen tokens) or None, and prompt_logprobs None")


def key_digest(key: object) -> bytes:
    """Return a hash of a key, which must be an integer or a string."""
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise ConfigError(
            f"a key must be an integer or a string, not {type(key).__name__}: choose another key column"
        )
    return _digest(key)


def canonical(value: object) -> bytes:
    """Return a value of a row as JSON. Arrow adds fields that are None to the structs of a list: leave them
    out, so that a row has one form, whichever rows are in its batch."""
    return msgspec.json.encode(without_none(value), order="sorted")


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def _digest(value: object) -> bytes:
    return hashlib.blake2b(canonical(value), digest_size=DIGEST_BYTES).digest()
