"""Keys of blocks of tokens, and the index of which replica has which block. No torch.

The key of a block is a hash of its tokens and of the key of the block before. So it stands for a prefix.
"""

import ctypes
import hashlib
import struct
from array import array
from collections.abc import Sequence

from octavo.kernels.arguments import Pointer
from octavo.kernels.library import KernelLibrary, find_library

ENTRY_BYTES = 16
MAX_SLOTS = 1 << 16


class HitStruct(ctypes.Structure):
    """`ov_prefix_hit` of octavo_kernels.h"""

    _fields_ = (("slot", ctypes.c_int32), ("depth", ctypes.c_int32))


PROTOTYPES = {
    "ov_prefix_root": (ctypes.c_int, (Pointer, Pointer, ctypes.c_int64, Pointer)),
    "ov_prefix_keys": (
        ctypes.c_int,
        (Pointer, ctypes.c_uint64, Pointer, ctypes.c_int64, ctypes.c_int64, Pointer),
    ),
    "ov_prefix_open": (ctypes.c_int, (ctypes.c_int64, ctypes.POINTER(Pointer))),
    "ov_prefix_close": (None, (Pointer,)),
    "ov_prefix_add": (ctypes.c_int, (Pointer, ctypes.c_int32, Pointer, ctypes.c_int64)),
    "ov_prefix_remove": (ctypes.c_int, (Pointer, ctypes.c_int32, Pointer, ctypes.c_int64)),
    "ov_prefix_forget": (ctypes.c_int, (Pointer, ctypes.c_int32)),
    "ov_prefix_match": (
        ctypes.c_int,
        (Pointer, Pointer, ctypes.c_int64, ctypes.c_uint64, Pointer, ctypes.c_int64, Pointer),
    ),
}


def load_prefix_library() -> KernelLibrary | None:
    """Return the native library for this module; None if it was not built."""
    path = find_library()
    if path is None:
        return None
    library = KernelLibrary(path)
    library.declare(PROTOTYPES)
    return library


def block_hasher(fingerprint: str, block_size: int) -> "BlockHasher | None":
    """Return a hasher for the blocks of engines with this fingerprint; None without the native library."""
    library = load_prefix_library()
    return None if library is None else BlockHasher(library, fingerprint, block_size)


class BlockHasher:
    """Computes the keys of blocks. Immutable.

    Engines and front ends must compute equal keys, so the key of the hash is made of what they share: the
    fingerprint. It is not a secret. The worst that a collision does is a request on the wrong replica.
    """

    def __init__(self, library: KernelLibrary, fingerprint: str, block_size: int) -> None:
        self._library = library
        self._block_size = block_size
        self._hash_key = array("Q", hashlib.blake2b(fingerprint.encode(), digest_size=16).digest())

    def root(self, salt: str) -> int:
        """Return the key before the first block of a prompt with this salt."""
        data, key = salt.encode(), array("Q", (0,))
        functions = self._library.functions
        self._library.check(
            functions.ov_prefix_root(_address(self._hash_key), data, len(data), _address(key))
        )
        return key[0]

    def keys(self, parent: int, tokens: bytes) -> "array[int]":
        """Return the keys of consecutive blocks after the one with the key `parent`.

        `tokens` are 32-bit numbers. A rest that does not fill a block is ignored.
        """
        num_blocks = len(tokens) // (4 * self._block_size)
        keys = array("Q", bytes(8 * num_blocks))
        self._library.check(
            self._library.functions.ov_prefix_keys(
                _address(self._hash_key), parent, tokens, num_blocks, self._block_size, _address(keys)
            )
        )
        return keys

    def prompt_keys(self, salt: str, token_ids: Sequence[int]) -> "array[int]":
        """Return the keys of all full blocks of a prompt."""
        # For long prompts, `struct` is three times as fast as `array`.
        return self.keys(self.root(salt), struct.pack(f"{len(token_ids)}i", *token_ids))


class PrefixIndex:
    """Which slots have which blocks. Owned by one thread.

    It keeps at most `num_entries` pairs of a slot and a block: it forgets those that were not used for the
    longest time. It may also forget others, or keep what a slot no longer has, so it is only a hint.
    """

    def __init__(self, library: KernelLibrary, num_entries: int) -> None:
        self._library = library
        self._functions = library.functions
        self.num_entries = num_entries
        self._handle = Pointer()
        self._num_hits = ctypes.c_int64()
        library.check(self._functions.ov_prefix_open(num_entries, ctypes.byref(self._handle)))

    def add(self, slot: int, keys: "array[int]") -> None:
        self._library.check(self._functions.ov_prefix_add(self._handle, slot, _address(keys), len(keys)))

    def remove(self, slot: int, keys: "array[int]") -> None:
        self._library.check(self._functions.ov_prefix_remove(self._handle, slot, _address(keys), len(keys)))

    def forget(self, slot: int) -> None:
        """Forget all blocks of a slot, in constant time."""
        self._library.check(self._functions.ov_prefix_forget(self._handle, slot))

    def match(self, keys: "array[int]", max_hits: int, tie: int = 0) -> list[tuple[int, int]]:
        """Return the slots that have the most of these blocks, from the first one on, with their number.

        The first ones have the most. `tie` decides between equal ones.
        """
        hits = (HitStruct * max_hits)()
        self._library.check(
            self._functions.ov_prefix_match(
                self._handle, _address(keys), len(keys), tie, hits, max_hits, ctypes.byref(self._num_hits)
            )
        )
        return [(hit.slot, hit.depth) for hit in hits[: self._num_hits.value]]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._functions.ov_prefix_close(self._handle)


def _address(keys: "array[int]") -> int:
    return keys.buffer_info()[0]
