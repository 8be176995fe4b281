"""The C library's allocator, told to give large buffers back."""

import ctypes
import sys

M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BYTES = 256 << 10


def return_large_buffers() -> None:
    """By itself, glibc keeps buffers of up to 32 MiB for later once it has seen one of that size; a few that
    are in use then keep the rest from the system. Above a threshold that is set, each buffer is a mapping of
    its own, which ends with it. Other C libraries are left as they are."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
