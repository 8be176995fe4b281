"""Views of an engine's state, for watchers: messages like those of `protocol`.

A view never contains prompts, answers, their tokens, or salts: a watcher may not be allowed to read them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.protocol import EngineFacts, EngineStats
from octavo.status import ReplicaStatus

# Codes of blocks. A block that is private to a sequence has the number of its slot instead.
FREE = -1
CACHED_IDLE = -2  # in the prefix tree, not used by a sequence
CACHED_HELD = -3  # in the prefix tree, used by a running sequence

MAX_WAITING = 64
MAX_NODES = 256
MAX_STEPS = 256

BlockRuns = tuple[tuple[int, int], ...]  # (code, number of consecutive blocks), over all block ids in order


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """A front end requests views for some seconds. It repeats the message to renew, or sends 0 to end."""

    seconds: float  # until the engine stops sending views
    interval: float  # minimum seconds between two views


class SequenceView(msgspec.Struct, frozen=True):
    """A running sequence."""

    slot: int
    request_id: str
    choice: int
    num_prompt: int
    num_tokens: int  # prompt and answer so far
    num_computed: int
    num_cached: int  # prompt tokens found in the prefix tree
    num_blocks: int
    num_shared_blocks: int  # how many of them, from the first on, are in the prefix tree
    preemptions: int


class WaitingView(msgspec.Struct, frozen=True):
    request_id: str
    choice: int
    num_prompt: int
    num_tokens: int
    preemptions: int
    seconds_waiting: float  # since it arrived


class NodeView(msgspec.Struct, frozen=True):
    """A node of the prefix tree: consecutive blocks that sequences share as a unit."""

    id: int  # id of its first block, which is in no other node
    parent: int | None  # None: its tokens begin a prompt
    num_blocks: int
    num_tokens: int
    holders: int  # running sequences that use it
    salt: int  # a number for the salt; prefixes of different salts are never shared


class TreeView(msgspec.Struct, frozen=True):
    nodes: tuple[NodeView, ...] = ()  # those nearest to the roots, parents before their children
    left_out: int = 0


class StepView(msgspec.Struct, frozen=True):
    step: int
    time: float  # start, in seconds since 1970
    seconds: float
    slices: tuple[tuple[int, int, int, int], ...]  # slot, first position, tokens, rows that sampled a token
    preempted: tuple[int, ...]  # slots whose sequences were preempted
    drafts: tuple[tuple[int, int, int], ...] = ()  # slot, drafted and accepted tokens, of slices with drafts


class EngineView(msgspec.Struct, frozen=True, kw_only=True, tag="view"):
    """The state of the engine between two steps."""

    time: float  # seconds since 1970
    stats: EngineStats
    blocks: BlockRuns
    sequences: tuple[SequenceView, ...]
    waiting: tuple[WaitingView, ...]  # the first in the queue; `stats.num_waiting` counts all
    tree: TreeView
    steps: tuple[StepView, ...]  # since the last view
    steps_left_out: int = 0  # earlier steps that were dropped


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A finished generation request, with the fields of its log line."""

    request_id: str
    response_id: str | None  # prefix of the request ids of its sequences in `EngineView`
    route: str
    status: int | None  # None: the client disconnected before the response
    model: str
    stream: bool | None  # None: the body could not be parsed
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str | None
    queue_seconds: float | None
    seconds_to_first_token: float | None
    seconds: float
    tokens_per_second: float | None
    error: str | None
    octavo: Mapping[str, Any] | None  # the explanation that a client may request, without text of the prompt


class Latency(msgspec.Struct, frozen=True):
    """Recent latencies in seconds; None without data."""

    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None


# The events of `GET /octavo/view`.


class FactsEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="facts"):
    """The first event about an engine, sent again when another engine is shown: after a restart, or if its
    replica cannot be used and the watcher did not ask for a certain one."""

    replica: str = ""  # whose engine the views show; "": the server is older than replicas
    model: str
    version: str
    facts: EngineFacts
    uptime_seconds: float  # of the server


class AwayEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="engine"):
    """Sent while there is no engine to show."""

    state: str  # starting, loading, failed, or removed: there is no replica of that name any more
    done: int = 0  # bytes of weights loaded so far
    total: int = 0


class ViewEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="view"):
    """An `EngineView`, with what the front end adds."""

    time: float
    stats: EngineStats
    blocks: BlockRuns
    sequences: tuple[SequenceView, ...]
    waiting: tuple[WaitingView, ...]
    tree: TreeView
    latency: Latency
    steps: tuple[StepView, ...]  # since the last event to this watcher
    steps_left_out: int
    finished: tuple[FinishedRequest, ...]  # since the last event to this watcher
    finished_left_out: int


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fleet"):
    """All replicas. The first event of all, and then at most one per second."""

    time: float  # seconds since 1970
    requests: int  # in flight
    unsent: int  # of them, those that no replica has
    moves: int  # since the start, requests that were sent to another engine than the first
    replicas: tuple[ReplicaStatus, ...]


Event = FactsEvent | AwayEvent | ViewEvent | FleetEvent
