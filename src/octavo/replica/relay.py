"""Passes messages between front ends on other machines and the engine of this replica.

    front ends                           relay                            engine
    ---- TCP, CURVE ----> one ROUTER     | one DEALER per front end ---- Unix socket ----> one ROUTER

The messages of front ends and engine pass unread. Those for the relay itself (`link.agent_messages`) are
about connections: who is there, whether the engine is alive, and that it ends soon.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec
import zmq

from octavo.fleet.budget import BudgetKeeper
from octavo.frontend.loss import Loss
from octavo.frontend.replica_link import ReplicaLink
from octavo.frontend.socket_channel import SocketChannel
from octavo.frontend.supervisor import EngineSupervisor
from octavo.link.agent_messages import (
    AGENT,
    BEAT_SECONDS,
    LEASE_SECONDS,
    MAX_UNSENT_MESSAGES,
    AgentState,
    Attach,
    Beat,
    Detach,
    Drained,
    EngineLost,
    FromAgent,
    Join,
    LeaseExpired,
    Renew,
    RestartEngine,
    ToAgent,
    decode_to_agent,
    encode_agent,
)
from octavo.link.budget_messages import BudgetMessage, answer_budget
from octavo.link.socket_reader import SocketReader
from octavo.link.versions import PROTOCOL_VERSION
from octavo.link.wire import encode
from octavo.protocol import EngineFacts, EngineOutputs, Goodbye, Hello, PrefixList
from octavo.replica.gate import Gate

logger = logging.getLogger(__name__)

MAX_FRONT_ENDS = 256
MAX_DRAINING_SECONDS = 120.0  # before an engine is replaced; then its requests are computed again
GOODBYE_MILLISECONDS = 1000  # that the last message to the engine may take
MAX_NAME = 64  # characters in the id of a front end


class FrontEnd:
    """One connection of a front end. Changed by Relay only."""

    def __init__(self, identity: bytes, name: str, now: float) -> None:
        self.identity = identity
        self.name = name
        self.heard_at = now
        self.is_drained = False
        self.load = Renew()  # as of its last message of this kind
        self.engine: SocketReader | None = None  # to the engine; None: it is not attached
        self.forwarding: asyncio.Task[None] | None = None  # of the engine's messages


class Relay:
    """Owned by the event loop of the agent. It is the user of the engines that the supervisor starts."""

    def __init__(
        self,
        name: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        gate: Gate,
        on_restart: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_restart` is called when an operator wants a new engine."""
        self._name = name
        self._agent_id = secrets.token_hex(8)
        self._context = context
        self._gate = gate
        self._on_restart = on_restart
        self._clock = clock
        self._supervisor: EngineSupervisor | None = None
        self._reader: SocketReader | None = None
        self._front_ends: dict[bytes, FrontEnd] = {}  # by identity
        self._budgets = BudgetKeeper(clock)
        self._epoch = 0
        self._is_ready = self._is_suspected = self._is_draining = self._is_ending = False
        self._in_slots: frozenset[int] | None = None
        self._num_requests = 0  # as of the engine's last message
        self.has_failed = asyncio.Event()  # no engine will be started again

    def open(self, address: str, supervisor: EngineSupervisor) -> str:
        """Listen on an address such as 127.0.0.1:7070, and return it with the port that was chosen."""
        self._supervisor = supervisor
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an error if a front end is gone or its queue is full
        socket.setsockopt(zmq.SNDHWM, MAX_UNSENT_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, MAX_UNSENT_MESSAGES)
        self._gate.protect(socket)
        socket.bind(f"tcp://{address}")
        self._reader = SocketReader(socket)
        host, _, port = socket.getsockopt_string(zmq.LAST_ENDPOINT).partition("//")[2].rpartition(":")
        # A socket for both versions of IP shows an IPv4 address as an IPv6 address.
        mapped = ipaddress.IPv6Address(host.strip("[]")).ipv4_mapped if host.startswith("[") else None
        return f"{host if mapped is None else mapped}:{port}"

    async def run(self) -> None:
        """Read what front ends send, until this task is cancelled."""
        assert self._reader is not None, "opened"
        while True:
            identity, *frames = await self._reader.next_frames()
            try:
                self._take(identity.bytes, frames)
            except Exception:
                logger.exception("failed to process a message")
                if identity.bytes in self._front_ends:
                    self._drop(self._front_ends[identity.bytes], "its message could not be processed")
            await asyncio.sleep(0)  # however much one front end sends, other tasks go on

    async def keep_beating(self) -> None:
        """Tell the front ends every BEAT_SECONDS how the engine is, until this task is cancelled."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._gate.poll()
            now = self._clock()
            for front_end in list(self._front_ends.values()):
                if now - front_end.heard_at > LEASE_SECONDS:
                    self._drop(front_end, "its lease has run out")
            self._beat()

    async def drain(self, *, until_idle: bool) -> None:
        """Ask all front ends to move their requests away. Returns when they have done what they can, or the
        engine has ended. With `until_idle`, it waits until the engine has no requests, and the next engine
        would be drained as well."""
        self._is_draining, self._is_ending = True, until_idle
        for front_end in self._front_ends.values():
            front_end.is_drained = front_end.engine is None
        self._beat()
        epoch, began = self._epoch, self._clock()
        while self._is_ready and self._epoch == epoch:
            is_late = not until_idle and self._clock() - began > MAX_DRAINING_SECONDS
            if is_late or (self._is_drained and not (until_idle and self._num_requests)):
                break
            await asyncio.sleep(BEAT_SECONDS / 10)

    @property
    def num_requests(self) -> int:
        return self._num_requests if self._is_ready else 0

    @property
    def num_front_ends(self) -> int:
        return len(self._front_ends)

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def load(self) -> Renew:
        """The load of all front ends: they wait at the same time, and have different requests."""
        loads = [one.load for one in self._front_ends.values()]
        return Renew(
            max((one.queue_seconds for one in loads), default=0.0), sum(one.num_sequences for one in loads)
        )

    def close(self) -> None:
        for front_end in list(self._front_ends.values()):
            self._detach(front_end)
        if self._reader is not None:
            self._reader.close()

    # -- as the user of engines --------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._num_requests

    @property
    def has_grammars(self) -> bool:
        return False  # the relay does not read requests

    def expect(self, replica: str) -> ReplicaLink | None:
        return None

    def connect(
        self,
        replica: str,
        channel: SocketChannel,
        facts: EngineFacts | None,
        ask_prefixes: Callable[[], None],
    ) -> None:
        self._epoch += 1
        self._is_ready, self._is_suspected, self._num_requests = True, False, 0
        self._is_draining = self._is_ending
        self._beat()

    def disconnect(self, replica: str, loss: Loss) -> None:
        self._is_ready = self._is_suspected = False
        in_slots = None if loss.in_slots is None else tuple(loss.in_slots)
        is_shared = len([one for one in self._front_ends.values() if one.engine is not None]) > 1
        lost = EngineLost(self._epoch, in_slots, loss.is_hang, loss.request_id, loss.is_blameless, is_shared)
        for front_end in list(self._front_ends.values()):
            if front_end.engine is not None:
                self._detach(front_end)
                self._tell(front_end, lost)

    def suspect(self, replica: str, in_slots: frozenset[int] | None) -> None:
        self._is_suspected, self._in_slots = True, in_slots
        self._beat()

    def restore(self, replica: str) -> None:
        self._is_suspected, self._in_slots = False, None
        self._beat()

    def dismiss(self, replica: str, reason: str) -> None:
        self.has_failed.set()

    def receive(self, replica: str, message: EngineOutputs) -> None:
        self._num_requests = message.stats.num_running + message.stats.num_waiting

    def receive_prefixes(self, replica: str, prefixes: PrefixList) -> None:
        pass  # the relay asks for none

    def end_expired(self) -> None:
        pass  # front ends do this themselves

    # -- what front ends send ------------------------------------------------------------------------------

    def _take(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        front_end = self._front_ends.get(identity)
        if not frames or self._gate.name_of(frames[0]) is None:
            if front_end is not None:
                self._drop(front_end, "its key is no longer allowed")
            return
        if front_end is not None:
            front_end.heard_at = self._clock()
        if len(frames) == 1 and front_end is not None:
            if front_end.engine is not None:
                self._forward(front_end.engine, frames[0])
            return  # without an engine: it was meant for one that is lost
        try:
            message = self._decode(frames)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            logger.error("dropped an undecodable message: %s", error)
            return
        if isinstance(message, Join):
            self._join(identity, message)
        elif front_end is None:
            self._send(identity, (AGENT, encode_agent(LeaseExpired())))
        else:
            self._handle(front_end, message)

    def _decode(self, frames: list[zmq.Frame]) -> ToAgent | None:
        """Return a message for the relay; None for one from an unknown peer to the engine."""
        if len(frames) == 1:
            return None
        if len(frames) != 2 or frames[0].bytes != AGENT:
            raise msgspec.DecodeError("not a message for the agent")
        message: ToAgent = decode_to_agent(frames[1].bytes)
        return message

    def _join(self, identity: bytes, join: Join) -> None:
        name = join.front_end[:MAX_NAME]
        for earlier in [one for one in self._front_ends.values() if one.name == name]:
            self._drop(earlier, "it has connected again")
        if len(self._front_ends) >= MAX_FRONT_ENDS:
            logger.error("refused front end %s: there are %d already", name, MAX_FRONT_ENDS)
            return
        self._front_ends[identity] = FrontEnd(identity, name, self._clock())
        logger.info("front end %s has joined", name)
        self._beat(only=identity)

    def _handle(self, front_end: FrontEnd, message: ToAgent | None) -> None:
        if isinstance(message, Attach):
            if self._is_ready and message.epoch == self._epoch:
                self._attach(front_end)
        elif isinstance(message, Detach):
            self._detach(front_end)
            front_end.is_drained = True
        elif isinstance(message, Drained):
            front_end.is_drained = True
        elif isinstance(message, Renew) and math.isfinite(message.queue_seconds):
            front_end.load = message
        elif isinstance(message, RestartEngine):
            self._on_restart()
        elif isinstance(message, BudgetMessage):
            self._tell(front_end, answer_budget(self._budgets, front_end.name, message))

    def _attach(self, front_end: FrontEnd) -> None:
        assert self._supervisor is not None, "opened"
        address = self._supervisor.engine_address
        if address is None or front_end.engine is not None:
            return
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, GOODBYE_MILLISECONDS)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        socket.send(encode(Hello(front_end.name, PROTOCOL_VERSION)))
        front_end.engine = SocketReader(socket)
        front_end.is_drained = False
        front_end.forwarding = asyncio.create_task(self._forward_outputs(front_end, front_end.engine))

    async def _forward_outputs(self, front_end: FrontEnd, engine: SocketReader) -> None:
        while front_end.engine is engine:
            message = await engine.next()
            self._send(front_end.identity, (message,))

    def _forward(self, engine: SocketReader, frame: zmq.Frame) -> None:
        # The queue to the engine has no limit, so sending never waits. Its process is watched.
        engine.socket.send(frame, zmq.NOBLOCK, copy=False)
        engine.look()

    # -- what front ends are told --------------------------------------------------------------------------

    def _beat(self, only: bytes | None = None) -> None:
        identities: Iterable[bytes] = list(self._front_ends) if only is None else [only]
        encoded = encode_agent(self._news())
        for identity in identities:
            self._send(identity, (AGENT, encoded))

    def _news(self) -> Beat:
        supervisor = self._supervisor
        assert supervisor is not None, "opened"
        heartbeat = supervisor.engine_heartbeat
        starting = AgentState.STARTING if self._epoch == 0 else AgentState.RESTARTING
        return Beat(
            version=PROTOCOL_VERSION,
            name=self._name,
            agent_id=self._agent_id,
            epoch=self._epoch,
            state=AgentState.READY if self._is_ready else starting,
            is_suspected=self._is_suspected,
            in_slots=None if self._in_slots is None else tuple(self._in_slots),
            is_draining=self._is_draining,
            pid=supervisor.engine_pid,
            phase=0 if heartbeat is None else int(heartbeat.phase),
            done=0 if heartbeat is None else heartbeat.done,
            total=0 if heartbeat is None else heartbeat.total,
            num_restarts=supervisor.num_restarts,
            num_failures=supervisor.num_failures,
            num_front_ends=len(self._front_ends),
            problem=None if self._is_ready else supervisor.last_death,
            refused={reason.value: number for reason, number in self._gate.refused.items()},
        )

    def _tell(self, front_end: FrontEnd, message: FromAgent) -> None:
        self._send(front_end.identity, (AGENT, encode_agent(message)))

    def _send(self, identity: bytes, frames: tuple[bytes, ...]) -> None:
        """Send without waiting. A front end that does not read, or is gone, is dropped."""
        assert self._reader is not None, "opened"
        try:
            self._reader.socket.send_multipart((identity, *frames), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            front_end = self._front_ends.get(identity)
            is_full = error.errno == zmq.EAGAIN
            if front_end is not None:
                self._drop(front_end, "it does not read its messages" if is_full else "it has disconnected")
        self._reader.look()

    @property
    def _is_drained(self) -> bool:
        return all(one.is_drained for one in self._front_ends.values())

    def _drop(self, front_end: FrontEnd, reason: str) -> None:
        """End the connection of a front end, and abort its requests."""
        logger.info("front end %s has left: %s", front_end.name, reason)
        del self._front_ends[front_end.identity]
        self._detach(front_end)
        self._budgets.drop_front_end(front_end.name)

    def _detach(self, front_end: FrontEnd) -> None:
        if front_end.engine is not None:
            with contextlib.suppress(zmq.ZMQError):  # the engine is dead
                front_end.engine.socket.send(encode(Goodbye()), zmq.NOBLOCK)
            front_end.engine.close()
            front_end.engine = None
        if front_end.forwarding is not None:
            front_end.forwarding.cancel()
            front_end.forwarding = None
