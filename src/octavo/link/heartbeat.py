"""The heartbeat of an engine process, in shared memory, readable while the engine is too busy to answer.

The engine writes a heartbeat before every step, with a timeout until the next one. When the heartbeat is
overdue, no step can run, whatever the state of the process: stopped, stuck in a kernel, or swapped out.

    bytes   0 ........ 8 ....... 16 ...... 24 ...... 32 ........ 40 ............... 104
            written_at phase     done      total     timeout     request_id, or zeros
"""

import enum
import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAX_ID_BYTES = 64
LAYOUT = struct.Struct(f"<dqqqd{MAX_ID_BYTES}s")

# Seconds. A starting engine cannot know how long its next action takes.
STARTING_TIMEOUT = 120.0
DOWNLOADING_TIMEOUT = 24 * 3600.0


class Phase(enum.IntEnum):
    STARTING = 0  # importing torch
    OPENING = 1  # reading the checkpoint's headers; downloading it first if necessary
    LOADING = 2  # loading weights; `done` of `total` bytes
    WARMING_UP = 3  # running one tiny step
    SERVING = 4


@dataclass(frozen=True)
class Heartbeat:
    written_at: float  # time.monotonic(), which all processes of a machine share
    phase: Phase
    done: int
    total: int
    timeout: float  # maximum seconds until the next heartbeat of a healthy engine
    request_id: str = ""  # the only request of the step; empty if there are several, or none


class HeartbeatFile:
    """Written by the engine only. Writes are not atomic: a read may mix fields of two heartbeats."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> None:
        path.write_bytes(LAYOUT.pack(time.monotonic(), Phase.STARTING, 0, 0, STARTING_TIMEOUT, b""))

    @classmethod
    def open(cls, path: Path) -> Self:
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), LAYOUT.size))

    def read(self) -> Heartbeat:
        written_at, phase, done, total, timeout, name = LAYOUT.unpack(self._memory[: LAYOUT.size])
        return Heartbeat(
            written_at, Phase(phase), done, total, timeout, name.rstrip(b"\0").decode(errors="replace")
        )

    def write(
        self,
        phase: Phase,
        done: int = 0,
        total: int = 0,
        *,
        timeout: float = STARTING_TIMEOUT,
        request_id: str = "",
    ) -> None:
        name = request_id.encode()
        if len(name) > MAX_ID_BYTES:  # a truncated id could be that of another request
            name = b""
        self._memory[: LAYOUT.size] = LAYOUT.pack(time.monotonic(), phase, done, total, timeout, name)
