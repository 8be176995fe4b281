"""Replicas on other machines, which `octavo replica` runs there.

Each front end connects to every replica. Front ends do not know each other: what they must agree on follows
from the replicas that they see.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import zmq

from octavo.errors import FleetError
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineState
from octavo.link.agent_messages import BEAT_SECONDS, Renew
from octavo.link.fleet_key import FleetKey
from octavo.link.heartbeat import Heartbeat
from octavo.link.socket_reader import LinkLost
from octavo.membership.address_source import AddressesUnavailable, AddressSource
from octavo.membership.pools import Pools
from octavo.membership.remote_keepers import RemoteKeepers
from octavo.membership.remote_replica import FleetLink, RemoteReplica, in_order
from octavo.membership.replica import best_state, find_replica, replica_status, shown_replica
from octavo.observe.audit_counts import AuditCounts
from octavo.observe.engine_tally import EngineTally, EngineTotals
from octavo.protocol import EngineFacts
from octavo.status import ReplicaStatus
from octavo.view import EngineView

logger = logging.getLogger(__name__)

LIST_SECONDS = 2.0  # between two looks at the list of addresses
POLL_SECONDS = 0.05
UNREACHABLE_SECONDS = 30.0  # after which a command to a replica fails
MAX_RESTART_SECONDS = 1800.0  # of one replica, from the command until it is used again


class RemoteReplicas:
    """Owned by the event loop that owns the hubs."""

    def __init__(self, source: AddressSource, key_path: Path, make_hub: Callable[[], Hub]) -> None:
        """Raises ConfigError if the key file is missing or invalid."""
        self._source = source
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._link = FleetLink(self._context, FleetKey.read(key_path), secrets.token_hex(8), self._renewal)
        self._pools = Pools(make_hub)
        self._by_address: dict[str, RemoteReplica] = {}
        self.keepers = RemoteKeepers(self._by_address.values)
        self._running: dict[str, asyncio.Task[None]] = {}  # by address
        self._removed = EngineTally()  # of replicas that are no longer listed
        self._num_removed_failures = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._last_problem = ""  # with the list of addresses
        self._queue_seconds: Callable[[], float] = lambda: 0.0
        self._load = Renew()
        self._load_at = 0.0  # when it was computed

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._oversee(), name="octavo-fleet"),
            asyncio.create_task(self._expire(), name="octavo-fleet-expiry"),
        ]

    async def close(self) -> None:
        """Disconnect from all replicas. In-flight requests end with an error. May be called again."""
        self._is_closed = True
        self._pools.give_up("the server is shutting down")
        tasks = [*self._running.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    async def wait_until_ready(self) -> None:
        """Return when a replica is ready."""
        while self.facts is None and not self._is_closed:
            await asyncio.sleep(POLL_SECONDS)

    async def wait_until_failed(self) -> None:
        """Never returns: a replica may come at any time."""
        await asyncio.Event().wait()

    # -- requests --------------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        current = self._pools.current
        assert current is not None, "a replica was ready"
        return current.hub

    @property
    def hubs(self) -> Sequence[Hub]:
        return self._pools.hubs

    @property
    def num_moves(self) -> int:
        return self._pools.num_moves

    @property
    def audit_counts(self) -> AuditCounts:
        return self._pools.audit_counts

    def report_queue(self, queue_seconds: Callable[[], float]) -> None:
        self._queue_seconds = queue_seconds

    def _renewal(self) -> Renew:
        """Return the load, which is computed once for all replicas: it is a sum over them."""
        now = time.monotonic()
        if now - self._load_at >= BEAT_SECONDS:
            self._load, self._load_at = self._measured_load(), now
        return self._load

    def _measured_load(self) -> Renew:
        num_unsent = sum(hub.num_unsent for hub in self.hubs)
        num_sent = sum(one.link.load for one in self._by_address.values() if one.link is not None)
        return Renew(self._queue_seconds(), num_unsent + num_sent)

    # -- commands of the operator ----------------------------------------------------------------------------

    @property
    def replicas(self) -> Sequence[RemoteReplica]:
        return in_order(self._by_address.values())

    def named(self, name: str) -> RemoteReplica | None:
        return next((one for one in self._by_address.values() if one.name == name), None)

    def find(self, name: str) -> RemoteReplica:
        """Return the replica of this name. Raises UnknownReplica."""
        return find_replica(self.replicas, name)

    def check_restart(self, name: str) -> None:
        """Raise FleetError if the replica cannot be restarted."""
        if not self.find(name).is_connected:
            raise FleetError(
                f"{name} is unreachable: check its machine, its `octavo replica` and the network"
            )

    async def restart(self, name: str) -> None:
        """Drain a replica and start a new engine there. Returns when it is ready."""
        self.check_restart(name)
        replica = self.find(name)
        before = replica.agent_id, replica.epoch
        replica.ask_restart()
        began = connected_at = time.monotonic()
        while (replica.agent_id, replica.epoch) == before or not replica.is_usable:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            connected_at = now if replica.is_connected else connected_at
            if now - connected_at > UNREACHABLE_SECONDS or now - began > MAX_RESTART_SECONDS:
                raise FleetError(
                    f"the new engine of {name} did not become ready: {replica.last_death}. Read the log of"
                    " `octavo replica` there"
                )

    async def replace_all(self, on_restarted: Callable[[str], None]) -> None:
        """Restart every replica, one after the other, while the others compute all requests."""
        for replica in self.replicas:
            await self.restart(replica.name)
            on_restarted(replica.name)

    def check_remove(self, name: str, others: Collection[str]) -> None:
        self.find(name)
        raise FleetError(
            f"{name} is on another machine: stop `octavo replica` there with SIGTERM. Its requests move to"
            " other replicas before it ends"
        )

    async def remove(self, name: str) -> None:
        self.check_remove(name, ())

    def check_add(self, num_queued: int) -> None:
        raise FleetError(
            "the replicas of this server are on other machines: start `octavo replica` there, and list its"
            " address in --fleet"
        )

    async def add(self, on_named: Callable[[str], None]) -> str:
        self.check_add(0)
        raise AssertionError("it cannot be added")

    # -- the engine view -------------------------------------------------------------------------------------

    @property
    def shown(self) -> RemoteReplica | None:
        return shown_replica(self.replicas)

    def watch(
        self, name: str, seconds: float, interval: float, on_view: Callable[[EngineView], None] | None
    ) -> None:
        """Ask the engine of a replica to send views to `on_view` for `seconds`, one per `interval`."""
        watched = self.named(name)
        if watched is not None:
            watched.on_view = on_view
            watched.watch(seconds, interval)

    # -- of all replicas -------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        if self._is_closed:
            return EngineState.CLOSED
        best = best_state([one.state for one in self._by_address.values()])
        # A replica that was expelled may be replaced, and others may come.
        return EngineState.UNREACHABLE if best in (EngineState.FAILED, EngineState.CLOSED) else best

    @property
    def failure(self) -> str | None:
        return None

    @property
    def problem(self) -> str | None:
        is_away = self.state is EngineState.UNREACHABLE
        return "no replica of the fleet can be reached" if is_away else None

    @property
    def facts(self) -> EngineFacts | None:
        current = self._pools.current
        return None if current is None else current.facts

    @property
    def is_live(self) -> bool:
        return not self._is_closed

    @property
    def engine_heartbeat(self) -> Heartbeat | None:
        connected = [one for one in self.replicas if one.is_connected]
        return connected[0].engine_heartbeat if connected else None

    @property
    def num_restarts(self) -> int:
        return self._num_removed_failures + sum(one.num_failures for one in self._by_address.values())

    @property
    def totals(self) -> EngineTotals:
        return EngineTally.total([*(one.tally for one in self.replicas), self._removed])

    @property
    def num_unplaced_requests(self) -> int:
        links = [one.link for one in self._by_address.values() if one.link is not None]
        return sum(map(len, self.hubs)) - sum(len(link.requests) for link in links)

    def status(self) -> tuple[ReplicaStatus, ...]:
        """Return what the operator of the server sees of each replica."""
        return tuple(map(replica_status, self.replicas))

    # -- parts -----------------------------------------------------------------------------------------------

    async def _oversee(self) -> None:
        """Connect to the replicas that are listed, and forget those that are neither listed nor connected."""
        while True:
            try:
                await self._look_up()
            except Exception:  # the next time may succeed
                logger.exception("failed to process the list of replicas")
            await asyncio.sleep(LIST_SECONDS)

    async def _expire(self) -> None:
        """End requests whose deadline or whose pool has passed."""
        while True:
            try:
                self._pools.end_orphans()
            except Exception:
                logger.exception("failed to end expired requests")
            await asyncio.sleep(POLL_SECONDS)

    async def _look_up(self) -> None:
        try:
            listed = await self._source.addresses()
        except AddressesUnavailable as error:
            if str(error) != self._last_problem:
                logger.warning("the list of replicas is not available: %s", error)
            self._last_problem = str(error)
            return
        self._last_problem = ""
        for address in listed:
            if address not in self._by_address:
                replica = RemoteReplica(
                    address, self._link, self._pools, self._name_for, self.keepers.note_change
                )
                self._by_address[address] = replica
                self._running[address] = asyncio.create_task(replica.run(), name="octavo-replica-link")
        for address in self._by_address.keys() - set(listed):
            if not self._by_address[address].is_connected:
                await self._forget(address)

    async def _forget(self, address: str) -> None:
        running, replica = self._running.pop(address), self._by_address.pop(address)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        logger.info("%s: no longer listed", replica.name)
        self._removed.absorb(replica.tally)
        self._num_removed_failures += replica.num_failures

    def _name_for(self, replica: RemoteReplica, wanted: str, agent_id: str) -> str:
        others = [one for one in self._by_address.values() if one is not replica]
        for other in others:
            if other.is_connected and other.agent_id == agent_id:
                raise LinkLost(f"it is {other.name}, which is listed as {other.address} too: list it once")
        return f"{wanted}@{replica.address}" if wanted in {one.name for one in others} else wanted
