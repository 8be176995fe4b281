"""What it costs, in seconds, to compute a request on a replica.

    prompts ahead of it, and what the replica lacks of its own   tokens * seconds per prompt token
    its answer makes every step longer for all sequences there   sequences * tokens * seconds per sequence
    blocks are missing, so others are preempted and recomputed   tokens * seconds per prompt token

No thresholds: a replica with the prefix is chosen until waiting there costs more than computing the prefix
again, so a prefix that is used much spreads over the fleet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

EXPECTED_TOKENS = 128  # of an answer, unless its maximum is lower
# Until any replica has measured its own speed.
SECONDS_PER_PROMPT_TOKEN = 1e-3
SECONDS_PER_SEQUENCE = 1e-3


class ReplicaLoad(Protocol):
    """What the router knows about a replica."""

    @property
    def is_usable(self) -> bool:
        """Whether requests may be sent to it."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences that it has."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prompts that it was sent and has not begun to answer, without those in its cache."""

    @property
    def blocks_available(self) -> int | None:
        """KV blocks that can be allocated without a preemption; None: not known."""

    @property
    def seconds_per_prompt_token(self) -> float:
        """As measured by the replica; 0: not known."""

    @property
    def seconds_per_sequence(self) -> float:
        """As measured by the replica; 0: not known."""


@dataclass(frozen=True)
class RequestSize:
    """What a request needs, wherever it is computed."""

    num_tokens: int  # of its prompt, and those already generated
    max_new_tokens: int

    @property
    def num_new_tokens(self) -> int:
        """How many tokens are expected to be generated."""
        return min(self.max_new_tokens, EXPECTED_TOKENS)


@dataclass(frozen=True)
class Speed:
    seconds_per_prompt_token: float
    seconds_per_sequence: float


def typical_speed(loads: Sequence[ReplicaLoad]) -> Speed:
    """Return the mean speed of the replicas that have measured it, for those that have not: a new engine
    must not look faster or slower than the others."""
    per_token = [one.seconds_per_prompt_token for one in loads if one.seconds_per_prompt_token]
    per_sequence = [one.seconds_per_sequence for one in loads if one.seconds_per_sequence]
    return Speed(
        sum(per_token) / len(per_token) if per_token else SECONDS_PER_PROMPT_TOKEN,
        sum(per_sequence) / len(per_sequence) if per_sequence else SECONDS_PER_SEQUENCE,
    )


def seconds_for(
    size: RequestSize, load: ReplicaLoad, num_cached: int, block_size: int, typical: Speed
) -> float:
    """Return what it costs to compute a request on a replica that has `num_cached` of its tokens. `typical`
    is the speed of a replica that has not measured its own."""
    per_token = load.seconds_per_prompt_token or typical.seconds_per_prompt_token
    per_sequence = load.seconds_per_sequence or typical.seconds_per_sequence
    missing = size.num_tokens - num_cached
    tokens = load.num_prompt_tokens + missing
    if load.blocks_available is not None:
        blocks = -(-(missing + size.num_new_tokens) // block_size)
        tokens += max(0, blocks - load.blocks_available) * block_size
    prompts = tokens * per_token
    answers = load.num_sequences * size.num_new_tokens * per_sequence
    return prompts + answers
