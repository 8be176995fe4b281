"""What it costs, in seconds, to compute a request on a replica.

    prompts ahead of it, and what the replica lacks of its own   tokens * seconds per prompt token
    its answer makes every step longer for all sequences there   sequences * tokens * seconds per sequence
    blocks are missing, so others are preempted and recomputed   tokens * seconds per prompt token

No thresholds: a replica with the prefix is chosen until waiting there costs more than computing the prefix
again, so a prefix that is used much spreads over the fleet.
"""

from dataclasses import dataclass
from typing import Protocol

EXPECTED_TOKENS = 128  # of an answer, unless its maximum is lower
# Until a replica has measured its own speed.
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


def seconds_for(size: RequestSize, load: ReplicaLoad, num_cached: int, block_size: int) -> float:
    """Return what it costs to compute a request on a replica that has `num_cached` of its tokens."""
    per_token = load.seconds_per_prompt_token or SECONDS_PER_PROMPT_TOKEN
    per_sequence = load.seconds_per_sequence or SECONDS_PER_SEQUENCE
    missing = size.num_tokens - num_cached
    tokens = load.num_prompt_tokens + missing
    if load.blocks_available is not None:
        blocks = -(-(missing + size.num_new_tokens) // block_size)
        tokens += max(0, blocks - load.blocks_available) * block_size
    prompts = tokens * per_token
    answers = load.num_sequences * size.num_new_tokens * per_sequence
    return prompts + answers
