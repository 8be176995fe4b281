"""What the router knows about the caches of replicas, when messages are lost, repeated and out of order."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache import BlockTable, KVManager
from octavo.fleet.prefixes import MAX_IGNORED, FleetPrefixes
from octavo.kernels.library import KernelLibrary
from octavo.kernels.prefix_index import BlockHasher, load_prefix_library
from octavo.protocol import PrefixChange, PrefixList

BLOCK_SIZE = 2
NUM_BLOCKS = 12
HASHER_OF = "fingerprint"


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    library = load_prefix_library()
    assert library is not None
    return library


class CachingReplica:
    """A real cache, and the messages that an engine would send about it."""

    def __init__(self, library: KernelLibrary) -> None:
        self.hasher = BlockHasher(library, HASHER_OF, BLOCK_SIZE)
        self.kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, key_maker=self.hasher)
        self.tables: list[BlockTable] = []

    def compute(self, token_ids: list[int]) -> PrefixChange | None:
        """Compute a prompt, evicting others if necessary. Return the message after the step."""
        table = self.kv.begin(token_ids, "")
        if self.kv.grow(table, len(token_ids)):
            self.kv.commit(table, token_ids, len(token_ids))
        self.kv.release(table)
        return self.kv.take_change()

    def keys(self) -> set[int]:
        """Return the keys of all cached blocks, hashed again from their tokens."""
        assert self.kv.tree is not None
        keys: set[int] = set()
        for node in self.kv.tree.nodes():
            tokens, at = b"", node
            while at.parent is not None:
                tokens, at = bytes(at.tokens) + tokens, at.parent
            keys |= set(self.hasher.keys(self.hasher.root(""), tokens))
        return keys


def known_keys(prefixes: FleetPrefixes, replica: str, keys: set[int]) -> set[int]:
    return {key for key in keys if replica in dict(prefixes.match(array("Q", (key,)), 12, 0))}


PROMPTS = st.lists(st.integers(0, 2), min_size=2, max_size=12)
EVENTS = st.one_of(
    st.tuples(st.just("compute"), PROMPTS),
    st.tuples(
        st.sampled_from(["deliver", "deliver", "lose", "repeat", "swap", "restart", "answer", "lose answer"])
    ),
)


@settings(deadline=None)
@given(events=st.lists(EVENTS, max_size=80), last=PROMPTS)
def test_what_is_known_heals(
    library: KernelLibrary, events: list[tuple[object, ...]], last: list[int]
) -> None:
    """However messages were damaged, one list and the changes after it make the knowledge exact."""
    prefixes, replica = FleetPrefixes(library), CachingReplica(library)
    prefixes.connect("other", NUM_BLOCKS)
    prefixes.connect("r", NUM_BLOCKS)
    seen: set[int] = set()
    messages: list[PrefixChange] = []
    asked: list[PrefixList] = []

    def receive(change: PrefixChange) -> None:
        prefixes.change("r", change.sequence, change.added, change.removed)

    def answer(lists: list[PrefixList]) -> None:
        for one in lists:
            prefixes.replace("r", one.sequence, one.keys)

    for event, *arguments in events:
        if event == "compute":
            change = replica.compute(arguments[0])  # type: ignore[arg-type]
            seen |= replica.keys()
            messages += [change] if change is not None else []
        elif event == "restart":
            replica = CachingReplica(library)
            messages, asked = [], []
            prefixes.connect("r", NUM_BLOCKS)
            assert known_keys(prefixes, "r", seen) == set(), "a restarted replica is forgotten at once"
        elif event == "deliver" and messages:
            receive(messages.pop(0))
        elif event == "lose" and messages:
            messages.pop(0)
        elif event == "repeat" and messages:
            receive(messages[0])
        elif event == "swap":
            messages[:2] = reversed(messages[:2])
        elif event == "answer":
            answer(asked)
            asked = []
        elif event == "lose answer":
            asked = []
        if "r" in prefixes.take_to_ask():
            asked.append(replica.kv.prefixes())
    # From here on nothing is lost. If a list was lost before, it is asked for again after some changes.
    for _ in range(MAX_IGNORED + 1):
        change = replica.compute(last) or replica.compute([*last, *last]) or PrefixChange(0)
        messages.append(change)
        for message in messages:
            receive(message)
        messages = []
        while "r" in prefixes.take_to_ask():
            answer([replica.kv.prefixes()])
    seen |= replica.keys()
    if replica.kv.prefixes().sequence:  # otherwise it never had a prefix
        assert known_keys(prefixes, "r", seen) == replica.keys()


def test_the_index_grows_with_the_fleet_up_to_its_limit(library: KernelLibrary) -> None:
    prefixes = FleetPrefixes(library, max_bytes=1 << 20)
    sizes = []
    for number in range(100):
        prefixes.connect(f"r{number}", 1000)
        sizes.append(prefixes.num_bytes)
    assert sizes[0] == 1 << 16
    assert sizes[-1] == 1 << 20 == max(sizes)
    for number in range(100):
        prefixes.disconnect(f"r{number}")
        prefixes.connect(f"s{number}", 1000)
    assert prefixes.num_bytes == 1 << 20, "slots are used again"


def test_promises_are_known_at_once(library: KernelLibrary) -> None:
    prefixes = FleetPrefixes(library)
    prefixes.connect("r0", 100)
    prefixes.connect("r1", 100)
    keys = BlockHasher(library, HASHER_OF, BLOCK_SIZE).prompt_keys("", range(20))
    prefixes.promise("r1", keys)
    assert prefixes.match(keys, 8, 0) == [("r1", 10)]
