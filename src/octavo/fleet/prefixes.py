"""Which replicas have the KV of which prefixes, as far as they have told.

A replica sends numbered changes after a list of all its prefixes:

    list 7   change 8   change 9   change 11
                                   |
                                   10 is missing: what is known stays as a hint, and a new list is asked for

Changes may be lost, repeated or out of order; the next list makes up for it. A wrong hint costs time and
never an answer, because the engine compares tokens.
"""

from array import array

from octavo.kernels.library import KernelLibrary
from octavo.kernels.prefix_index import ENTRY_BYTES, MAX_SLOTS, PrefixIndex

MAX_BYTES = 256 << 20
MIN_ENTRIES = 1 << 12
# Entries per block of a replica, as a power of two: windows overflow at random, long before all are full.
ENTRIES_PER_BLOCK = 2
# Changes without the list that was asked for, after which it is asked for again: it may be lost.
MAX_IGNORED = 64


class ReplicaPrefixes:
    """How far one replica's changes are known. Changed by FleetPrefixes only."""

    __slots__ = ("latest", "num_blocks", "num_ignored", "sequence", "slot")

    def __init__(self, slot: int, num_blocks: int) -> None:
        self.slot = slot
        self.num_blocks = num_blocks
        self.sequence: int | None = None  # of the last change that is known; None: waiting for a list
        self.latest = 0  # the highest number of a change that arrived
        self.num_ignored = 0  # changes since the list was asked for


class FleetPrefixes:
    """Owned by Router."""

    def __init__(self, library: KernelLibrary, max_bytes: int = MAX_BYTES) -> None:
        self._library = library
        self._max_entries = max_bytes // ENTRY_BYTES
        self._index = PrefixIndex(library, min(MIN_ENTRIES, self._max_entries))
        self._replicas: dict[str, ReplicaPrefixes] = {}
        self._names: dict[int, str] = {}  # by slot
        self._free_slots: list[int] = []
        self._to_ask: dict[str, None] = {}

    @property
    def num_bytes(self) -> int:
        return self._index.num_entries * ENTRY_BYTES

    def connect(self, replica: str, num_blocks: int) -> None:
        """Note a new engine. Nothing is known about its prefixes."""
        self.disconnect(replica)
        slot = self._free_slots.pop() if self._free_slots else len(self._replicas)
        if slot >= MAX_SLOTS:
            return
        self._names[slot] = replica
        self._replicas[replica] = ReplicaPrefixes(slot, num_blocks)
        self._to_ask[replica] = None
        self._fit()

    def disconnect(self, replica: str) -> None:
        """Forget the prefixes of an engine, in constant time."""
        known = self._replicas.pop(replica, None)
        if known is not None:
            self._index.forget(known.slot)
            self._free_slots.append(known.slot)
            del self._names[known.slot]
            self._to_ask.pop(replica, None)

    def take_to_ask(self) -> list[str]:
        """Return the replicas to ask for a list now."""
        asked, self._to_ask = list(self._to_ask), {}
        return asked

    def replace(self, replica: str, sequence: int, keys: bytes) -> None:
        """Take a list: all prefixes as of a change."""
        known = self._replicas.get(replica)
        if known is None or (known.sequence is not None and sequence < known.sequence):
            return
        self._index.forget(known.slot)
        self._index.add(known.slot, array("Q", keys))
        known.sequence = sequence
        if known.latest > sequence:  # a change after the list arrived before it, and was ignored
            self._ask(replica, known)

    def change(self, replica: str, sequence: int, added: bytes, removed: bytes) -> None:
        known = self._replicas.get(replica)
        if known is None:
            return
        known.latest = max(known.latest, sequence)
        if known.sequence is None:
            known.num_ignored += 1
            if known.num_ignored >= MAX_IGNORED:
                self._ask(replica, known)
        elif sequence == known.sequence + 1:
            self._index.add(known.slot, array("Q", added))
            self._index.remove(known.slot, array("Q", removed))
            known.sequence = sequence
        elif sequence > known.sequence:
            self._ask(replica, known)

    def promise(self, replica: str, keys: "array[int]") -> None:
        """Note prefixes that a replica will have, because it was just asked to compute them. So requests with
        the same new prefix, which arrive together, meet at one replica."""
        known = self._replicas.get(replica)
        if known is not None:
            self._index.add(known.slot, keys)

    def match(self, keys: "array[int]", max_hits: int, tie: int) -> list[tuple[str, int]]:
        """Return the replicas that have the most of these blocks, counted from the first one on."""
        hits = self._index.match(keys, max_hits, tie)
        # An entry of a replica that is long gone may match again, when its 16-bit epoch comes round.
        return [(self._names[slot], depth) for slot, depth in hits if slot in self._names]

    def _ask(self, replica: str, known: ReplicaPrefixes) -> None:
        known.sequence, known.num_ignored = None, 0
        self._to_ask[replica] = None

    def _fit(self) -> None:
        """Replace the index by a larger one if there are more blocks than it was made for."""
        wanted = ENTRIES_PER_BLOCK * sum(known.num_blocks for known in self._replicas.values())
        num_entries = min(max(MIN_ENTRIES, 1 << (wanted - 1).bit_length()), self._max_entries)
        if num_entries <= self._index.num_entries:
            return
        self._index = PrefixIndex(self._library, num_entries)
        for replica, known in self._replicas.items():
            self._ask(replica, known)
