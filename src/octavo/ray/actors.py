"""The Ray actors of a fleet. Ray places and restarts them; prompts, tokens, seeds and keys do not pass here.

    fleet:NAME               one per fleet: keeps the wanted number of replicas. Its state consists of its
                             arguments and the existing actors, so it may be restarted at any time
    replica:NAME:DIGEST:N    one per replica, in a placement group: runs `octavo replica` on its node

All are detached: they do not depend on the process that has started them.
"""

import logging
import threading
import time
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from octavo.fleet.scaling import FleetLoad, Scaler
from octavo.ray.fleet_changes import Changes, changes_of
from octavo.ray.replica_keeper import ReplicaKeeper
from octavo.ray.spec import (
    NAMESPACE,
    FleetSpec,
    PlacedReplica,
    RayFleetStatus,
    ReplicaSlot,
    ReplicaSpec,
    parse_actor_name,
)

logger = logging.getLogger(__name__)

STEP_SECONDS = 1.0
ANSWER_SECONDS = 2.0  # that a replica's actor may take to answer
LOST_SECONDS = 60.0  # an actor that should end and does not answer for this time has no process to end


class ReplicaActor:
    """Supervises one replica."""

    def __init__(self, spec: ReplicaSpec, grace: float) -> None:
        self._keeper = ReplicaKeeper(spec, ray.util.get_node_ip_address(), grace)

    def placed(self) -> PlacedReplica:
        keeper = self._keeper
        node_id = ray.get_runtime_context().get_node_id()
        return PlacedReplica(node_id, keeper.report, keeper.problem, keeper.is_ending)

    def end(self) -> None:
        """Drain and end the replica. Returns when it has ended. May be called again."""
        self._keeper.end()


class FleetActor:
    """Keeps the wanted number of replicas. Its own thread changes everything but `_is_ending`."""

    def __init__(self, spec: FleetSpec, grace: float) -> None:
        # No call of Ray here: Ray does not restart an actor whose constructor has failed.
        self._spec = spec
        self._grace = grace
        self._scaler = Scaler(spec.rule)
        self._num_wanted: int | None = None  # None: the existing replicas have not been counted yet
        self._ending: dict[ReplicaSlot, Any] = {}  # the calls of `end`
        self._answered_at: dict[ReplicaSlot, float] = {}
        self._unused_groups: set[str] = set()  # placement groups without an actor, as of the last step
        self._is_ending = False
        self._has_ended = threading.Event()
        self._status: RayFleetStatus | None = None
        threading.Thread(target=self._run, name="octavo-fleet", daemon=True).start()

    def status(self) -> RayFleetStatus | None:
        """Return the state of the last step; None before the first."""
        return self._status

    def addresses(self) -> list[str]:
        """Return where the replicas listen, ready or not."""
        placed = [] if self._status is None else self._status.replicas.values()
        reports = [one.report for one in placed if one is not None]
        return sorted(report.address for report in reports if report is not None)

    def end(self) -> None:
        """End all replicas. Returns when they have ended."""
        self._is_ending = True
        self._has_ended.wait()

    def _run(self) -> None:
        while not self._has_ended.is_set():
            try:
                self._step()
            except Exception:  # of Ray: the head or a node may be lost; the next step may succeed
                logger.exception("cannot manage the fleet %s", self._spec.name)
            time.sleep(STEP_SECONDS)

    def _step(self) -> None:
        now = time.monotonic()
        actors = self._actors()
        replicas = self._placed(actors, now)
        self._remove_ended(actors, replicas, now)
        status = RayFleetStatus(self._next_number(now, replicas), self._spec.replica.digest, replicas)
        changes = changes_of(status, frozenset(self._ending), is_ending=self._is_ending)
        self._apply(changes, actors)
        self._status = status
        if self._is_ending and not actors:
            self._has_ended.set()

    def _next_number(self, now: float, replicas: dict[ReplicaSlot, PlacedReplica | None]) -> int:
        if self._num_wanted is None:
            self._num_wanted = len(replicas) or self._spec.start
        staying = [one for slot, one in replicas.items() if slot not in self._ending]
        num_ready = len([one for one in staying if one is not None and one.is_ready])
        self._num_wanted = self._scaler.wanted(now, self._num_wanted, num_ready, _load(replicas))
        return self._num_wanted

    def _actors(self) -> dict[ReplicaSlot, Any]:
        """Return the supervising actors of the fleet."""
        found = {}
        for name in ray.util.list_named_actors():
            slot = parse_actor_name(self._spec.name, name)
            if slot is not None:
                try:
                    found[slot] = ray.get_actor(name, namespace=NAMESPACE)
                except ValueError:  # it has just ended
                    continue
        return found

    def _placed(self, actors: dict[ReplicaSlot, Any], now: float) -> dict[ReplicaSlot, PlacedReplica | None]:
        calls = {actor.placed.remote(): slot for slot, actor in actors.items()}
        placed: dict[ReplicaSlot, PlacedReplica | None] = dict.fromkeys(sorted(actors))
        for slot in actors:
            self._answered_at.setdefault(slot, now)
        if not calls:
            return placed
        answered, unanswered = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS)
        for call in unanswered:  # it is not placed yet, or its node is lost
            ray.cancel(call)
        for call in answered:
            try:
                placed[calls[call]] = ray.get(call)
                self._answered_at[calls[call]] = now
            except ray.exceptions.RayError as error:  # Ray starts it again
                logger.info("%s: %s", calls[call], type(error).__name__)
        return placed

    def _apply(self, changes: Changes, actors: dict[ReplicaSlot, Any]) -> None:
        for slot in changes.end:
            self._ending[slot] = actors[slot].end.remote()
        for slot in changes.start:
            self._start(slot)

    def _start(self, slot: ReplicaSlot) -> None:
        spec = self._spec.replica
        name = slot.actor_name(self._spec.name)
        memory: dict[str, Any] = {"memory": spec.memory} if spec.memory else {}
        # The demand is visible to Ray's autoscaler, which may add a node.
        group = _find_group(name) or placement_group(
            [{"CPU": spec.cpus} | memory], strategy="STRICT_PACK", name=name, lifetime="detached"
        )
        ray.remote(ReplicaActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=spec.cpus,
            max_restarts=-1,
            max_concurrency=4,  # `placed` is answered while `end` waits
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group),
            **memory,
        ).remote(spec, self._grace)

    def _remove_ended(
        self,
        actors: dict[ReplicaSlot, Any],
        replicas: dict[ReplicaSlot, PlacedReplica | None],
        now: float,
    ) -> None:
        """Remove the actors of replicas that have ended, and groups without an actor."""
        for slot, call in list(self._ending.items()):
            if slot in actors and not self._has_finished(slot, call, actors, now):
                continue
            if slot in actors:
                ray.kill(actors.pop(slot), no_restart=True)
                replicas.pop(slot)
            del self._ending[slot]
        for gone in self._answered_at.keys() - actors.keys():
            del self._answered_at[gone]
        unused = {
            group["name"]
            for group in placement_group_table().values()
            if group["state"] != "REMOVED" and self._is_unused(group["name"], actors)
        }
        for name in unused & self._unused_groups:  # in two steps: its actor may be about to be listed
            found = _find_group(name)
            if found is not None:
                remove_placement_group(found)
        self._unused_groups = unused

    def _is_unused(self, group: str, actors: dict[ReplicaSlot, Any]) -> bool:
        slot = parse_actor_name(self._spec.name, group)
        return slot is not None and slot not in actors

    def _has_finished(self, slot: ReplicaSlot, call: Any, actors: dict[ReplicaSlot, Any], now: float) -> bool:
        """Whether `end` has returned. An actor that was restarted meanwhile is asked again."""
        if not ray.wait([call], timeout=0)[0]:
            return now - self._answered_at[slot] > LOST_SECONDS
        try:
            ray.get(call)
        except ray.exceptions.RayError:
            self._ending[slot] = actors[slot].end.remote()
            return now - self._answered_at[slot] > LOST_SECONDS
        return True


def _find_group(name: str) -> PlacementGroup | None:
    try:
        group: PlacementGroup = ray.util.get_placement_group(name)
    except ValueError:
        return None
    return group


def _load(replicas: dict[ReplicaSlot, PlacedReplica | None]) -> FleetLoad | None:
    """Return the load of the fleet. Each replica knows all front ends that are connected to it."""
    reports = [one.report for one in replicas.values() if one is not None and one.report is not None]
    ready = [report for report in reports if report.is_ready]
    if not ready:
        return None
    return FleetLoad(
        max(report.queue_seconds for report in ready),
        max(report.num_sequences for report in ready),
        min(report.max_running for report in ready),
    )
