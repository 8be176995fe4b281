"""Configure the C library's allocator to return large buffers to the operating system."""

import ctypes
import sys

M_MMAP_THRESHOLD = -3  # from malloc.h
LARGE_BYTES = 256 << 10


def return_large_buffers() -> None:
    """Fix glibc's mmap threshold, so that every larger buffer is a mapping of its own.

    By default glibc raises the threshold to up to 32 MiB once it has seen a buffer of that size. Freed
    buffers below it stay in the heap, and a few live ones among them keep the heap from shrinking. Other C
    libraries are left as they are.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
