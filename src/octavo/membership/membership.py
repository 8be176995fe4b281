"""Who starts and lists the replicas of a server: `local` (child processes), `remote` (other machines)."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineState
from octavo.link.heartbeat import Heartbeat
from octavo.membership.remote_keepers import RemoteKeepers
from octavo.membership.replica import Replica
from octavo.observe.audit_counts import AuditCounts
from octavo.observe.engine_tally import EngineTotals
from octavo.protocol import EngineFacts
from octavo.status import ReplicaStatus
from octavo.view import EngineView


class Membership(Protocol):
    """Owned by the event loop. `LocalReplicas` and `RemoteReplicas` implement it."""

    def start(self) -> None: ...

    async def close(self) -> None:
        """Stop. In-flight requests end with an error. May be called more than once."""

    async def wait_until_ready(self) -> None:
        """Return when a replica is ready, or never will be: see `state`."""

    async def wait_until_failed(self) -> None:
        """Return when no replica will ever be ready again."""

    # -- requests --------------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """The hub of new requests. A request stays with the hub that it was submitted to."""

    @property
    def hubs(self) -> Sequence[Hub]:
        """One hub for each fingerprint: streams never move from one to another."""

    @property
    def num_moves(self) -> int:
        """Requests that were sent to an engine after another one had begun with them."""

    @property
    def audit_counts(self) -> AuditCounts: ...

    @property
    def keepers(self) -> RemoteKeepers | None:
        """The way to those who keep the budgets of API keys; None if this process is the only front end."""

    def report_queue(self, queue_seconds: Callable[[], float]) -> None:
        """Note how to learn the seconds that a new request would wait, for the process that starts
        replicas."""

    # -- commands of the operator, one at a time: see `FleetOperations` --------------------------------------

    @property
    def replicas(self) -> Sequence[Replica]: ...

    def named(self, name: str) -> Replica | None: ...

    def find(self, name: str) -> Replica:
        """Return the replica of this name. Raises UnknownReplica."""

    def check_restart(self, name: str) -> None:
        """Raise FleetError if the replica cannot be restarted."""

    async def restart(self, name: str) -> None:
        """Drain a replica and start a new engine there. Returns when it is ready."""

    async def replace_all(self, on_restarted: Callable[[str], None]) -> None:
        """Restart every replica, one after the other."""

    def check_remove(self, name: str, others: Collection[str]) -> None:
        """Raise FleetError if the replica, with `others` that will be removed too, cannot be removed."""

    async def remove(self, name: str) -> None:
        """Drain a replica and end its engine."""

    def check_add(self, num_queued: int) -> None:
        """Raise FleetError if no replica can be added after `num_queued` others."""

    async def add(self, on_named: Callable[[str], None]) -> str:
        """Start one more replica, and return its name when it is ready."""

    # -- the engine view -------------------------------------------------------------------------------------

    @property
    def shown(self) -> Replica | None:
        """The replica whose engine is shown, unless a watcher asks for a certain one."""

    def watch(
        self, name: str, seconds: float, interval: float, on_view: Callable[[EngineView], None] | None
    ) -> None:
        """Ask the engine of a replica to send views to `on_view` for `seconds`, one per `interval`."""

    # -- of all replicas -------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """The best state of any replica."""

    @property
    def failure(self) -> str | None:
        """Why no replica will have an engine again, for the operator of the server."""

    @property
    def problem(self) -> str | None:
        """Why there is no engine now, safe to show to clients."""

    @property
    def facts(self) -> EngineFacts | None:
        """The facts that apply to new requests; None until an engine was ready."""

    @property
    def is_live(self) -> bool: ...

    @property
    def engine_heartbeat(self) -> Heartbeat | None: ...

    @property
    def num_restarts(self) -> int:
        """Engines that were ready, and then died or hung."""

    @property
    def totals(self) -> EngineTotals: ...

    @property
    def num_unplaced_requests(self) -> int:
        """In-flight requests that no replica has."""

    def status(self) -> tuple[ReplicaStatus, ...]:
        """Return what the operator of the server sees of each replica."""
