"""The front end's side of a replica on another machine: one connection after the other, until it is closed.

no message for 2.5 s            suspected: its requests move to other replicas
... for 6 s, or disconnected    the connection is given up, and the next one is tried
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import zmq

from octavo.errors import OctavoError
from octavo.frontend.drain_replica import LONELY_SECONDS, drain_replica
from octavo.frontend.hub import Hub
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.frontend.replica_link import ReplicaLink
from octavo.frontend.socket_channel import EngineRecipient, SocketChannel
from octavo.frontend.supervisor import EngineState
from octavo.link.agent_messages import (
    AGENT,
    BEAT_SECONDS,
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
    Refusal,
    Renew,
    RestartEngine,
    ToAgent,
    decode_from_agent,
    encode_agent,
)
from octavo.link.budget_messages import BudgetMessage, BudgetReply
from octavo.link.fleet_key import FleetKey
from octavo.link.heartbeat import Heartbeat, Phase
from octavo.link.socket_reader import LinkLost, SocketReader
from octavo.link.versions import PROTOCOL_VERSION
from octavo.link.wire import decode_from_engine
from octavo.membership.pools import PoolError, Pools
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import EngineFacts, EngineOutputs, PrefixList, Ready
from octavo.view import EngineView, Watch

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
MAX_TICK_GAP = 1.0  # after a longer one, this process was itself stopped, and could not read messages
SUSPECTED_AFTER = 2.5
CUT_AFTER = 6.0
JOIN_SECONDS = 3.0  # to connect and to get the first message
RETRY_SECONDS = 0.5  # between two connections
RECHECK_SECONDS = 5.0  # after which a replica that does not fit the others is tried again
MAX_MESSAGE_BYTES = 256 << 20  # from an agent; the largest are the lists of cached prefixes

STATES = {AgentState.STARTING: EngineState.STARTING, AgentState.RESTARTING: EngineState.RESTARTING}


@dataclass(frozen=True)
class FleetLink:
    """What all connections of a front end have in common."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    key: FleetKey
    front_end: str  # the id of this process
    renewal: Callable[[], Renew]  # with its load of now

    def open(self, address: str, peer_public: bytes) -> SocketReader:
        """Begin to connect. The socket has one connection, and does not try again: see `SocketReader`."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # no queue without a connection, so its end is visible
        socket.setsockopt(zmq.CONNECT_TIMEOUT, int(1000 * JOIN_SECONDS))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.SNDHWM, MAX_UNSENT_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, MAX_UNSENT_MESSAGES)
        self.key.protect_connection(socket, peer_public)
        socket.connect(f"tcp://{address}")
        return SocketReader(socket)


class RemoteReplica:
    """Owned by the event loop that owns the hubs."""

    def __init__(
        self,
        address: str,
        link: FleetLink,
        pools: Pools,
        take_name: "Callable[[RemoteReplica, str, str], str]",
        on_change: Callable[[], None],
    ) -> None:
        """`take_name` returns a name that no other replica has, from the one that its agent wants and the id
        of the agent. It raises LinkLost if another address leads to the same agent. `on_change` is called
        after its agent has connected or is gone."""
        self.address = address
        self.name = address  # until it says its own
        self.tally = EngineTally()
        self.state = EngineState.UNREACHABLE
        self.link: ReplicaLink | None = None
        self.facts: EngineFacts | None = None
        self.ready_at: float | None = None
        self.last_death: str | None = "there was no connection yet"
        self.engine_pid: int | None = None
        self.engine_heartbeat: Heartbeat | None = None
        self.num_restarts = self.num_failures = self.num_front_ends = 0
        self.refused_connections: Mapping[str, int] = {}  # by its agent, since that started; by `Refusal`
        self.epoch = 0  # of its latest engine
        self.agent_id = ""  # of the process at the other end
        self.on_view: Callable[[EngineView], None] | None = None
        self._fleet_link = link
        self._pools = pools
        self._take_name = take_name
        self._on_change = on_change
        self._hub: Hub | None = None  # of the engine that it is connected to
        self._channel: SocketChannel | None = None
        self._reader: SocketReader | None = None
        self._attached: int | None = None  # epoch of the engine that it has asked for
        self._refused: tuple[str, int] | None = None  # agent and epoch of an engine: see `last_death`
        self._refused_until = -math.inf
        self._num_outvoted = 0  # audits that earlier engines of this replica have lost
        self._heard_at = self._watched_since = time.monotonic()
        self._is_engine_suspected = self._is_suspected = False
        self._in_slots: frozenset[int] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._replies: dict[int, asyncio.Future[BudgetReply]] = {}

    @property
    def is_usable(self) -> bool:
        return self.link is not None and self.link.is_usable

    @property
    def is_connected(self) -> bool:
        return self.state is not EngineState.UNREACHABLE

    async def run(self) -> None:
        """Connect, again and again, until this task is cancelled."""
        publics = list(self._fleet_link.key.allowed)
        while True:
            try:
                await self._converse(publics[0])
            except Exception as error:
                if not isinstance(error, OctavoError | msgspec.MsgspecError | zmq.ZMQError):
                    logger.exception("%s: the connection failed", self.name)
                if self.is_connected:
                    logger.warning("%s: unreachable: %s", self.name, error)
                elif str(error) != self.last_death:
                    logger.warning("%s: cannot connect: %s", self.name, error)
                self.last_death = str(error)
                if not self.is_connected:  # perhaps it has another key of the list
                    publics = publics[1:] + publics[:1]
            finally:
                self._disconnect()
            await asyncio.sleep(RETRY_SECONDS)

    def watch(self, seconds: float, interval: float) -> None:
        """Ask the engine, if any, to send views to `on_view` for `seconds`, one per `interval`."""
        if self._channel is not None:
            self._channel.send(Watch(seconds, interval))

    def ask_restart(self) -> None:
        """Ask for a new engine. All front ends move their requests away before."""
        self._tell(RestartEngine())

    async def ask_budget(self, message: BudgetMessage) -> BudgetReply:
        """Return the reply of the keeper there. Raises LinkLost."""
        if not self.is_connected:
            raise LinkLost("there is no connection")
        reply: asyncio.Future[BudgetReply] = asyncio.get_running_loop().create_future()
        self._replies[message.number] = reply
        try:
            self._tell(message)
            return await reply
        finally:
            del self._replies[message.number]

    # -- one connection ------------------------------------------------------------------------------------

    async def _converse(self, peer_public: bytes) -> None:
        self._reader = reader = self._fleet_link.open(self.address, peer_public)
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                await reader.wait_until_connected()
                self._tell(Join(f"{self._fleet_link.front_end} {self.address}", PROTOCOL_VERSION))
                await self._take(await reader.next_frames())
        except TimeoutError:
            raise LinkLost("it does not answer, or does not accept the fleet key") from None
        reading = asyncio.create_task(self._read(reader))
        ticking = asyncio.create_task(self._tick())
        try:
            await asyncio.wait([reading, ticking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, ticking):
                task.cancel()
            outcomes = await asyncio.gather(reading, ticking, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    async def _read(self, reader: SocketReader) -> None:
        while True:
            await self._take(await reader.next_frames())
            await asyncio.sleep(0)  # however many messages there are, other tasks go on

    async def _tick(self) -> None:
        last = renewed = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            if now - last > MAX_TICK_GAP:
                self._watched_since = now
            last = now
            if now - renewed >= BEAT_SECONDS:
                renewed = now
                self._tell(self._fleet_link.renewal())
            if self._channel is not None and self._channel.has_lost_message:
                raise LinkLost("too many messages wait for it")
            silent = now - max(self._heard_at, self._watched_since)
            if silent > CUT_AFTER:
                raise LinkLost(f"it has sent nothing for {silent:.0f} s")
            self._note_response(is_silent=silent > SUSPECTED_AFTER)
            self._expel_if_wrong()

    async def _take(self, frames: list[zmq.Frame]) -> None:
        self._heard_at = time.monotonic()
        if len(frames) == 2 and frames[0].bytes == AGENT:
            self._handle(decode_from_agent(frames[1].bytes))
        elif self._channel is not None:
            await self._channel.pass_on(
                frames[0].bytes, EngineRecipient(self._receive, self._show, self._list_prefixes)
            )
        elif self._attached is not None:
            ready = decode_from_engine(frames[0].bytes)
            if isinstance(ready, Ready):
                self._connect(ready)

    def _handle(self, message: FromAgent) -> None:
        if isinstance(message, Beat):
            self._note_beat(message)
        elif isinstance(message, EngineLost):
            if message.epoch == self._attached:
                in_slots = None if message.in_slots is None else frozenset(message.in_slots)
                loss = Loss(
                    in_slots, message.is_hang, message.request_id, message.is_blameless, message.is_shared
                )
                logger.warning("%s: the engine has ended", self.name)
                self._lose_engine(loss)
        elif isinstance(message, LeaseExpired):
            raise LinkLost("this front end was silent for too long")
        elif message.number in self._replies and not self._replies[message.number].done():
            self._replies[message.number].set_result(message)

    def _note_beat(self, beat: Beat) -> None:
        is_new = not self.is_connected
        if is_new:
            self.name = self._take_name(self, beat.name, beat.agent_id)
            self.agent_id = beat.agent_id
            logger.info("%s: connected to %s", self.name, self.address)
        self.epoch, self.engine_pid = beat.epoch, beat.pid
        self.num_restarts, self.num_failures = beat.num_restarts, beat.num_failures
        self.num_front_ends = beat.num_front_ends
        self.refused_connections = {one.value: beat.refused.get(one.value, 0) for one in Refusal}
        self.engine_heartbeat = Heartbeat(self._heard_at, Phase(beat.phase), beat.done, beat.total, 0.0)
        if (beat.agent_id, beat.epoch) == self._refused and time.monotonic() < self._refused_until:
            self.state = EngineState.FAILED
        elif beat.state is not AgentState.READY:
            self.state, self.last_death = STATES[beat.state], beat.problem
        elif self._channel is not None:
            self.state = EngineState.READY
        else:  # it is ready when it has answered
            self.state = EngineState.STARTING if self.facts is None else EngineState.RESTARTING
            if self._attached != beat.epoch:
                self._attached = beat.epoch
                self._tell(Attach(beat.epoch))
        if is_new:
            self._on_change()
        self._is_engine_suspected = beat.is_suspected
        self._in_slots = None if beat.in_slots is None else frozenset(beat.in_slots)
        self._note_response(is_silent=False)
        if beat.is_draining and self._channel is not None and self._draining is None:
            self._draining = asyncio.create_task(self._drain(self._channel))

    # -- its engine ----------------------------------------------------------------------------------------

    def _connect(self, ready: Ready) -> None:
        assert self._reader is not None, "a message has arrived"
        try:
            hub = self._pools.join(self.name, ready.facts)
        except PoolError as error:
            self._refuse(str(error), RECHECK_SECONDS)
            return
        if self._hub not in (None, hub):
            self._leave_pool()
        self._hub, self.facts, self.state = hub, ready.facts, EngineState.READY
        self._channel = channel = SocketChannel(self._reader, ready)
        self.ready_at = time.monotonic()
        self.tally.engine_ready(ready.stats)
        self._is_suspected = False
        self._num_outvoted = hub.audit_counts.num_outvoted[self.name]
        self._expect(hub)
        logger.info("%s: the engine is ready", self.name)
        hub.connect(self.name, channel, ready.facts, channel.ask_prefixes)

    def _lose_engine(self, loss: Loss) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        self._attached = self._channel = self.ready_at = None
        if self._hub is not None:
            self.tally.engine_lost()
            self._hub.disconnect(self.name, loss)

    def _leave_pool(self) -> None:
        """Without this, the requests of its pool would wait for its next engine."""
        hub, self._hub = self._hub, None
        if hub is not None:
            self._pools.leave(self.name, hub)

    def _refuse(self, reason: str, seconds: float) -> None:
        """Do not use the current engine, for so many seconds."""
        if reason != self.last_death:
            logger.error("%s: refused: %s", self.name, reason)
        self._refused = self.agent_id, self._attached or 0
        self._refused_until = time.monotonic() + seconds
        self.state, self.last_death = EngineState.FAILED, reason
        self._tell(Detach())
        self._lose_engine(NOBODYS_FAULT)
        self._leave_pool()

    def _expect(self, hub: Hub) -> None:
        """Add it to a hub. Its counts continue."""
        last, self.link = self.link, hub.expect(self.name)
        if last is not None and last is not self.link:
            self.link.num_suspicions += last.num_suspicions
            self.link.num_moves_in += last.num_moves_in
            self.link.num_moves_out += last.num_moves_out

    def _disconnect(self) -> None:
        self._lose_engine(NOBODYS_FAULT)
        self._leave_pool()
        was_connected = self.is_connected
        self.state, self.engine_pid = EngineState.UNREACHABLE, None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(LinkLost("the connection was closed"))
        if was_connected:
            self._on_change()

    def _note_response(self, *, is_silent: bool) -> None:
        """Tell the hub whether machine and engine respond."""
        if self._hub is None or self._channel is None:
            return
        is_suspected = is_silent or self._is_engine_suspected
        if is_suspected and not self._is_suspected:
            who = "the machine" if is_silent else "the engine"
            logger.warning("%s: %s does not respond", self.name, who)
            self._hub.suspect(self.name, frozenset() if is_silent else self._in_slots)
        elif self._is_suspected and not is_suspected:
            logger.info("%s: it responds again", self.name)
            self._hub.restore(self.name)
        self._is_suspected = is_suspected

    def _expel_if_wrong(self) -> None:
        """Stop using an engine whose answer differs from that of two others. The next one is used again."""
        if self._hub is None or self._channel is None:
            return
        if self._hub.audit_counts.num_outvoted[self.name] > self._num_outvoted:
            reason = "an audit found that its answers are wrong: its memory or its processor may be faulty"
            self._refuse(reason, math.inf)

    async def _drain(self, channel: SocketChannel) -> None:
        """Move requests away until there are none, or the engine has ended."""
        hub = self._hub
        while hub is not None and self._channel is channel:
            await drain_replica(hub, self.name, LONELY_SECONDS, lambda: self._channel is not channel)
            self._tell(Drained())
            await asyncio.sleep(BEAT_SECONDS)

    def _receive(self, message: EngineOutputs) -> None:
        self.tally.note(message.stats)
        if self._hub is not None:
            self._hub.receive(self.name, message)

    def _list_prefixes(self, prefixes: PrefixList) -> None:
        if self._hub is not None:
            self._hub.receive_prefixes(self.name, prefixes)

    def _show(self, view: EngineView) -> None:
        if self.on_view is None:
            return
        try:
            self.on_view(view)
        except Exception:  # it must not end the connection
            logger.exception("failed to show a view of the engine")

    def _tell(self, message: ToAgent) -> None:
        if self._reader is not None:
            with contextlib.suppress(zmq.Again):  # the connection has ended, which its reader notices
                self._reader.socket.send_multipart((AGENT, encode_agent(message)), zmq.NOBLOCK)
            self._reader.look()


def in_order(replicas: Iterable[RemoteReplica]) -> list[RemoteReplica]:
    """Return the replicas in an order that does not depend on when they were found."""
    return sorted(replicas, key=lambda one: (len(one.name), one.name))
