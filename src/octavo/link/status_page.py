"""What an engine process shows of itself while it is too busy to answer: a few numbers in shared memory.

The engine stamps the page before every step, and says how long it may be until the next stamp. A page that
is older than that means that no step can run, whatever the process looks like from outside: stopped, stuck
in a kernel, or swapped out.

    bytes   0 ..... 8 ....... 16 ...... 24 ...... 32 ........ 40 .............. 104
            stamp   phase     done      total     patience    request, or zeros
"""

import enum
import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MOST_ID_BYTES = 64
LAYOUT = struct.Struct(f"<dqqqd{MOST_ID_BYTES}s")

# Seconds. While it starts, an engine cannot know how long the next thing takes.
PATIENCE_STARTING = 120.0
PATIENCE_DOWNLOADING = 24 * 3600.0


class Phase(enum.IntEnum):
    STARTING = 0  # importing torch
    OPENING = 1  # reading the checkpoint's headers; fetching it first, if nobody has
    LOADING = 2  # weights; `done` of `total` bytes
    WARMING_UP = 3  # one tiny step
    SERVING = 4


@dataclass(frozen=True)
class Status:
    stamp: float  # of time.monotonic(), which all processes of a machine share
    phase: Phase
    done: int
    total: int
    patience: float  # seconds from the stamp to the next, if all is well
    request_id: str = ""  # whom the engine works for until the next stamp, if that is one request alone


class StatusPage:
    """Written by the engine only. A reader may see the stamp of one moment and the phase of another."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> None:
        path.write_bytes(LAYOUT.pack(time.monotonic(), Phase.STARTING, 0, 0, PATIENCE_STARTING, b""))

    @classmethod
    def open(cls, path: Path) -> Self:
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), LAYOUT.size))

    def read(self) -> Status:
        stamp, phase, done, total, patience, name = LAYOUT.unpack(self._memory[: LAYOUT.size])
        return Status(stamp, Phase(phase), done, total, patience, name.rstrip(b"\0").decode(errors="replace"))

    def stamp(
        self,
        phase: Phase,
        done: int = 0,
        total: int = 0,
        *,
        patience: float = PATIENCE_STARTING,
        request_id: str = "",
    ) -> None:
        name = request_id.encode()
        if len(name) > MOST_ID_BYTES:  # half a name would be another's
            name = b""
        self._memory[: LAYOUT.size] = LAYOUT.pack(time.monotonic(), phase, done, total, patience, name)
