"""What an engine shows of itself while somebody watches. Beside `protocol`, and of the same kind.

Never a prompt, an answer or a salt, nor a token of them: who may watch need not be who asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.protocol import EngineFacts, EngineStats

# Of a page that is not private to the sequence in a slot, whose code is the slot's number.
FREE = -1
CACHED_IDLE = -2  # in the prefix tree; no sequence holds it
CACHED_HELD = -3  # in the prefix tree, and under a running sequence

MOST_WAITING = 64
MOST_NODES = 256
MOST_STEPS = 256

PageRuns = tuple[tuple[int, int], ...]  # (code, how many pages in a row), over all page ids in order


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """A front end wants views for a while. To go on watching, it says so again; to end, it says 0 seconds."""

    seconds: float  # after which the engine forgets it
    interval: float  # seconds between two views, at least


class SequenceView(msgspec.Struct, frozen=True):
    """A running sequence."""

    slot: int
    request_id: str
    choice: int
    num_prompt: int
    num_tokens: int  # prompt and answer so far
    num_computed: int
    num_cached: int  # prompt tokens that were found in the prefix tree
    num_pages: int
    num_shared_pages: int  # the first of them, which are in the prefix tree
    preemptions: int


class WaitingView(msgspec.Struct, frozen=True):
    request_id: str
    choice: int
    num_prompt: int
    num_tokens: int
    preemptions: int
    seconds_waiting: float  # since it arrived


class NodeView(msgspec.Struct, frozen=True):
    """A node of the prefix tree: a run of pages that sequences share as a whole."""

    id: int  # of its first page, which is in no other node
    parent: int | None  # None: its tokens begin a prompt
    num_pages: int
    num_tokens: int
    holders: int  # running sequences
    salt: int  # a number for the salt; prefixes of different salts are never shared


class TreeView(msgspec.Struct, frozen=True):
    nodes: tuple[NodeView, ...] = ()  # those nearest to the roots, parents before their children
    left_out: int = 0


class StepView(msgspec.Struct, frozen=True):
    step: int
    time: float  # when it began, in seconds since 1970
    seconds: float
    slices: tuple[tuple[int, int, int, int], ...]  # slot, first position, tokens, tokens drawn
    preempted: tuple[int, ...]  # slots whose sequences had to give their pages back


class EngineView(msgspec.Struct, frozen=True, kw_only=True, tag="view"):
    """The engine between two steps."""

    time: float  # seconds since 1970
    stats: EngineStats
    pages: PageRuns
    sequences: tuple[SequenceView, ...]
    waiting: tuple[WaitingView, ...]  # the first in the queue; `stats.num_waiting` counts all
    tree: TreeView
    steps: tuple[StepView, ...]  # since the last view
    steps_left_out: int = 0  # before them


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for tokens that is over, as its log line has it."""

    request_id: str
    response_id: str | None  # of its sequences in `EngineView`, the request id begins with this
    route: str
    status: int | None  # None: the client left before there was an answer
    model: str
    stream: bool | None  # None: its body was not understood
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str | None
    queue_seconds: float | None
    seconds_to_first_token: float | None
    seconds: float
    tokens_per_second: float | None
    error: str | None
    octavo: Mapping[str, Any] | None  # the explanation that a client may ask for, without words of a prompt


class Latency(msgspec.Struct, frozen=True):
    """Seconds, of late; None where nothing has come."""

    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None


# What `GET /octavo/view` tells, event by event.


class FactsEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="facts"):
    """First, and again whenever an engine was replaced."""

    model: str
    version: str
    facts: EngineFacts
    uptime_seconds: float  # of the server


class AwayEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="engine"):
    """While there is no engine that serves."""

    state: str  # starting, loading or failed
    done: int = 0  # bytes of weights that are loaded
    total: int = 0


class ViewEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="view"):
    """An `EngineView`, and what the front end adds."""

    time: float
    stats: EngineStats
    pages: PageRuns
    sequences: tuple[SequenceView, ...]
    waiting: tuple[WaitingView, ...]
    tree: TreeView
    latency: Latency
    steps: tuple[StepView, ...]  # since the last event that this watcher got
    steps_left_out: int
    finished: tuple[FinishedRequest, ...]  # likewise
    finished_left_out: int


Event = FactsEvent | AwayEvent | ViewEvent
