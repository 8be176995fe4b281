"""Choose the replica that a request is sent to.

A few candidates are compared by their cost (see `cost`), however many replicas there are: those that have
most of the prompt in their caches, the owners of its first block, and some at random. So requests with the
same beginning meet even before any replica has it, and load spreads without a view of all replicas.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.fleet.cost import ReplicaLoad, RequestSize, seconds_for, typical_speed
from octavo.fleet.hashing import hashed
from octavo.fleet.prefixes import FleetPrefixes
from octavo.fleet.ring import Ring
from octavo.kernels.library import KernelLibrary
from octavo.kernels.prefix_index import BlockHasher, load_prefix_library

NUM_HITS = 8
NUM_OWNERS = 2
NUM_RANDOM = 2
MAX_CANDIDATES = NUM_HITS + NUM_OWNERS + NUM_RANDOM
# Costs that differ by less are equal, and a hash of the request decides. Otherwise all front ends would
# choose the same replica at the same time.
NEAR = 1.02

NO_KEYS = array("Q")


@dataclass(frozen=True)
class Route:
    """Where a request goes."""

    replica: str
    num_cached: int  # tokens that are probably in the replica's cache


class Router:
    """Owned by Hub."""

    def __init__(self, library: KernelLibrary | None = None) -> None:
        """Without the native library, prefixes are not considered."""
        self._library = library
        self._hasher: BlockHasher | None = None
        self._block_size = 1
        self.prefixes = None if library is None else FleetPrefixes(library)
        self._loads: dict[str, ReplicaLoad] = {}
        self._names: list[str] = []
        self._ring = Ring()

    @classmethod
    def with_prefixes(cls) -> "Router":
        return cls(load_prefix_library())

    def add(self, replica: str, load: ReplicaLoad) -> None:
        """Add a replica; its load is read with each choice."""
        self._loads[replica] = load
        self._names = list(self._loads)
        self._ring.add(replica)

    def remove(self, replica: str) -> None:
        if self._loads.pop(replica, None) is not None:
            self._names = list(self._loads)
            self._ring.remove(replica)
            self.disconnect(replica)

    def connect(self, replica: str, fingerprint: str, block_size: int, num_blocks: int) -> None:
        """Note a new engine. All engines of a fleet have the same fingerprint."""
        if self._library is None or self.prefixes is None:
            return
        if self._hasher is None:
            self._hasher = BlockHasher(self._library, fingerprint, block_size)
            self._block_size = block_size
        self.prefixes.connect(replica, num_blocks)

    def disconnect(self, replica: str) -> None:
        if self.prefixes is not None:
            self.prefixes.disconnect(replica)

    @property
    def needs_keys(self) -> bool:
        """Whether prefixes make a difference: there are several replicas to choose from."""
        return self._hasher is not None and len(self._loads) > 1

    def keys(self, salt: str, token_ids: Sequence[int]) -> "array[int]":
        """Return the keys of the blocks of a prompt, for `choose`."""
        if self._hasher is None or not self.needs_keys:
            return NO_KEYS
        # The last token is always computed.
        return self._hasher.prompt_keys(salt, token_ids[:-1])

    def choose(
        self, request_id: str, size: RequestSize, keys: "array[int]", excluded: str | None = None
    ) -> Route | None:
        """Return the usable replica with the lowest cost; None if there is none."""
        mixed = hashed(request_id)
        hits = {}
        if self.prefixes is not None and keys:
            hits = dict(self.prefixes.match(keys, MAX_CANDIDATES, mixed))
        cached = {name: depth * self._block_size for name, depth in hits.items()}
        candidates = [
            name
            for name in self._candidates(hits, keys, mixed)
            if name != excluded and self._loads[name].is_usable
        ]
        if not candidates:
            candidates = [name for name in self._names if name != excluded and self._loads[name].is_usable]
        if not candidates:
            return None
        if len(candidates) == 1:
            chosen = candidates[0]
        else:
            typical = typical_speed([self._loads[name] for name in candidates])
            costs = {
                name: seconds_for(size, self._loads[name], cached.get(name, 0), self._block_size, typical)
                for name in candidates
            }
            limit = min(costs.values()) * NEAR
            near = [name for name, cost in costs.items() if cost <= limit]
            chosen = near[0] if len(near) == 1 else min(near, key=lambda name: hashed(name, request_id))
        return Route(chosen, cached.get(chosen, 0))

    def promise(self, replica: str, keys: "array[int]") -> None:
        """Note that a replica was sent a request with these keys."""
        if self.prefixes is not None and keys:
            self.prefixes.promise(replica, keys)

    def _candidates(self, hits: Mapping[str, int], keys: "array[int]", mixed: int) -> Sequence[str]:
        names = self._names
        if len(names) <= MAX_CANDIDATES:
            return names
        chosen = dict.fromkeys(list(hits)[:NUM_HITS])
        if keys:
            owners = self._ring.owners(keys[0], NUM_OWNERS, lambda name: self._loads[name].is_usable)
            chosen |= dict.fromkeys(owners)
        at_random = [names[(mixed >> shift) % len(names)] for shift in range(0, 8 * NUM_RANDOM, 8)]
        return list(chosen | dict.fromkeys(at_random))


def with_min_load(loads: Mapping[str, int], request_id: str) -> str:
    """Return the replica with the fewest sequences. A hash of the request decides between equal ones."""
    minimum = min(loads.values())
    return min((name for name, load in loads.items() if load == minimum), key=lambda n: hashed(n, request_id))
