"""Messages between a front end and the agent of a replica on another machine (`octavo replica`).

They share a connection with the messages between front end and engine, which the agent passes on unread. A
message for the agent, or from it, has two frames: AGENT and the message. One for the engine has one frame.

    front end                    agent                        engine
       | Join                      |                             |
       |-------------------------->| starts and watches it       |
       | Beat, every 0.5 s         |                             |
       |<--------------------------|                             |
       | Attach(epoch)             |                             |
       |-------------------------->| Hello                       |
       |                           |---------------------------->|
       | Ready, outputs            |                       Ready |
       |<--------------------------|<----------------------------|
       | requests                  |                             |
       |-------------------------->|---------------------------->|
       | Renew, every 0.5 s        |                             |
       |-------------------------->|                             |
       | EngineLost                |                      killed |
       |<--------------------------|                             x

The epoch is the number of the engine. What a front end sends before it attaches to the next engine was meant
for the last one, so the agent drops it: the front end asks again when it learns of the loss.
"""

from enum import StrEnum

import msgspec

from octavo.link.budget_messages import BudgetMessage, BudgetReply

AGENT = b"agent"

BEAT_SECONDS = 0.5
# Without a message from a front end for this time, the agent aborts its requests and forgets it.
LEASE_SECONDS = 10.0
# Messages that may wait for a peer that does not read them. Then the connection is given up.
MAX_UNSENT_MESSAGES = 4096


class Join(msgspec.Struct, frozen=True, tag="join"):
    """The first message of a front end. An earlier connection of the same front end is over."""

    front_end: str
    version: int


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Connect this front end to the engine with this number."""

    epoch: int


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """Disconnect this front end from the engine, which aborts its requests."""


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The front end is alive, and wants its requests. Its load is for the process that starts replicas."""

    queue_seconds: float = 0.0  # that a new request would wait until an engine begins with it
    num_sequences: int = 0  # of this front end, on all replicas or waiting for one


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The front end has moved all requests away from the replica that it can move now."""


class RestartEngine(msgspec.Struct, frozen=True, tag="restart_engine"):
    """The operator wants a new engine: let all front ends move their requests away, then replace it."""


class AgentState(StrEnum):
    STARTING = "starting"  # its first engine is being loaded
    READY = "ready"
    RESTARTING = "restarting"  # its next engine is being loaded


class Refusal(StrEnum):
    """Why an agent refused a connection."""

    UNKNOWN_KEY = "unknown_key"  # a complete handshake with a key that is not on the list
    HANDSHAKE = "handshake"  # no CURVE, not ZeroMQ, a wrong server key, replayed bytes
    # The peer closed the connection or was silent: a port scan, a TCP health check, a killed process.
    UNFINISHED = "unfinished"


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """What the agent knows about its engine."""

    version: int  # of the protocol
    name: str  # of the replica
    agent_id: str  # of the agent's process: another one knows no budgets
    epoch: int  # the number of the engine; 0: none was ready yet
    state: AgentState
    is_suspected: bool  # the engine does not respond
    in_slots: tuple[int, ...] | None  # of a suspected engine: numbers of the requests that it was computing
    is_draining: bool  # move the requests away: the engine will end
    pid: int | None
    phase: int  # `Phase` of an engine that is starting
    done: int  # bytes of weights
    total: int
    num_restarts: int
    num_failures: int
    num_front_ends: int  # with a lease
    problem: str | None = None  # why there is no engine that is ready
    refused: dict[
        str, int
    ] = {}  # connections to the agent, by `Refusal`. A later version may have more reasons


class EngineLost(msgspec.Struct, frozen=True, tag="engine_lost"):
    """The engine that the front end is attached to has ended. See `frontend.loss.Loss`."""

    epoch: int
    in_slots: tuple[int, ...] | None
    is_hang: bool
    request_id: str
    is_blameless: bool
    is_shared: bool  # it was attached to other front ends, too


class LeaseExpired(msgspec.Struct, frozen=True, tag="lease_expired"):
    """The agent does not know this connection, or no longer: connect again."""


ToAgent = Join | Attach | Detach | Renew | Drained | RestartEngine | BudgetMessage
FromAgent = Beat | EngineLost | LeaseExpired | BudgetReply

encode_agent = msgspec.msgpack.Encoder().encode
decode_to_agent = msgspec.msgpack.Decoder(ToAgent).decode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
