"""The checksum of packed weight files."""

import numpy as np
import numpy.typing as npt
import pytest

from octavo.kernels.library import KernelLibrary


def checksum(library: KernelLibrary, data: npt.NDArray[np.uint8]) -> int:
    return library.checksum(int(data.ctypes.data), data.size)


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 65, 1000])
def test_every_bit_changes_the_checksum(library: KernelLibrary, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    seen = {checksum(library, data)}
    for position in range(size):
        for bit in range(8):
            data[position] ^= 1 << bit
            seen.add(checksum(library, data))
            data[position] ^= 1 << bit
    assert len(seen) == 1 + 8 * size


def test_the_same_change_twice_does_not_cancel(library: KernelLibrary) -> None:
    """The changed words are 64 bytes apart, so they are mixed into the same chain."""
    data = np.zeros(4096, dtype=np.uint8)
    seen = {checksum(library, data)}
    for first in range(7, 1024, 8):
        data[first] ^= 0x80
        data[first + 64] ^= 0x80
        seen.add(checksum(library, data))
        data[:] = 0
    assert len(seen) == 1 + len(range(7, 1024, 8))


def test_length_and_order_change_the_checksum(library: KernelLibrary) -> None:
    zeros = np.zeros(300, dtype=np.uint8)
    assert len({checksum(library, zeros[:size]) for size in range(300)}) == 300
    words = np.arange(512, dtype=np.uint8)
    swapped = np.concatenate((words[64:128], words[:64], words[128:]))
    assert checksum(library, words) != checksum(library, swapped)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_checksums_match_xxh64(library: KernelLibrary, text: bytes, expected: int) -> None:
    """Test vectors of the reference implementation and its bindings."""
    assert checksum(library, np.frombuffer(text + b"x", np.uint8)[: len(text)]) == expected
