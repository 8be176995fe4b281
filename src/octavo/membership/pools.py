"""The pools of a front end: the replicas with one fingerprint share a hub, and streams stay in theirs.

During an upgrade there are two pools. New requests go to the one with more replicas, so each front end
changes over at about half of the upgrade, and answers before and after that have one fingerprint each.
"""

import logging
import time
from collections.abc import Callable

from octavo.config import counted
from octavo.errors import OctavoError
from octavo.frontend.hub import Hub
from octavo.observe.audit_counts import AuditCounts
from octavo.protocol import EngineFacts

logger = logging.getLogger(__name__)

# Without any replica of its fingerprint for this time, a request ends with an error.
MAX_ORPHAN_SECONDS = 60.0
ORPHANED = (
    "no replica is left that can continue this answer with the same tokens: send the request again, and a new"
    " answer is computed"
)


class PoolError(OctavoError):
    """A replica cannot be used together with the others."""


class HubPool:
    """Changed by Pools only."""

    def __init__(self, hub: Hub, facts: EngineFacts) -> None:
        self.hub = hub
        self.facts = facts  # of its first replica; they limit the requests of all
        self.members: set[str] = set()  # names of replicas
        self.left_at: float | None = None  # when the last one left

    @property
    def is_usable(self) -> bool:
        return bool(self.hub.usable)


class Pools:
    """Owned by the event loop."""

    def __init__(self, make_hub: Callable[[], Hub], clock: Callable[[], float] = time.monotonic) -> None:
        self._make_hub = make_hub
        self._clock = clock
        self._pools: dict[str, HubPool] = {}  # by fingerprint
        self._num_ended_moves = 0  # of pools that were given up
        self._ended_audits = AuditCounts()

    @property
    def current(self) -> HubPool | None:
        """The pool of new requests: all front ends that see the same replicas choose the same one."""
        pools = self._pools.items()
        best = max(pools, key=lambda item: (item[1].is_usable, len(item[1].members), item[0]), default=None)
        return None if best is None else best[1]

    @property
    def hubs(self) -> tuple[Hub, ...]:
        return tuple([pool.hub for pool in self._pools.values()])

    @property
    def num_moves(self) -> int:
        """Requests that moved, in all pools that there ever were."""
        return self._num_ended_moves + sum(hub.num_moves for hub in self.hubs)

    @property
    def audit_counts(self) -> AuditCounts:
        return AuditCounts.total([self._ended_audits, *(hub.audit_counts for hub in self.hubs)])

    def join(self, replica: str, facts: EngineFacts) -> Hub:
        """Add a replica to the pool of its fingerprint. Raises PoolError if it is too small for it."""
        pool = self._pools.get(facts.system_fingerprint)
        if pool is None:
            pool = self._pools[facts.system_fingerprint] = HubPool(self._make_hub(), facts)
            if len(self._pools) > 1:
                logger.warning("there are replicas with %s", counted(len(self._pools), "fingerprint"))
        elif not pool.members and not len(pool.hub):
            pool.facts = facts
        if facts.max_model_len < pool.facts.max_model_len:
            raise PoolError(
                f"its max_model_len is {facts.max_model_len}, but requests of up to"
                f" {pool.facts.max_model_len} tokens were accepted: start it with --max-model-len"
                f" {pool.facts.max_model_len}, or restart the front ends"
            )
        pool.members.add(replica)
        pool.left_at = None
        return pool.hub

    def leave(self, replica: str, hub: Hub) -> None:
        """Remove a replica. Its requests wait for others of the same pool."""
        hub.remove(replica)
        for pool in self._pools.values():
            if pool.hub is hub:
                pool.members.discard(replica)
                pool.left_at = None if pool.members else self._clock()

    def end_orphans(self) -> None:
        """Give up pools that have had no replica for a long time. Called often."""
        now = self._clock()
        for fingerprint, pool in list(self._pools.items()):
            pool.hub.end_expired()
            if pool.left_at is not None and now - pool.left_at > MAX_ORPHAN_SECONDS:
                logger.error("no replica with fingerprint %s is left", fingerprint)
                pool.hub.give_up(ORPHANED)
                self._num_ended_moves += pool.hub.num_moves
                self._ended_audits = AuditCounts.total([self._ended_audits, pool.hub.audit_counts])
                del self._pools[fingerprint]

    def give_up(self, reason: str) -> None:
        for hub in self.hubs:
            hub.give_up(reason)
