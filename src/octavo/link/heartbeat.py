"""The heartbeat of an engine process, in shared memory, readable while the engine is too busy to answer.

The engine writes a heartbeat before every step, with a timeout until the next one. When the heartbeat is
overdue, no step can run, whatever the state of the process: stopped, stuck in a kernel, or swapped out.

    bytes   0 ........ 8 ..... 16 ..... 24 ..... 32 ..... 40 ................ 104 ..... 112 ........
            written_at phase   done     total    timeout  request_id, or zeros  sent_at   slots: 8 bytes each

A slot contains the number of the request whose sequence has it, or 0. It is written before the step that
computes the sequence first. So after a death, the front end knows which requests may be the cause.
"""

import enum
import hashlib
import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAX_ID_BYTES = 64
LAYOUT = struct.Struct(f"<dqqqd{MAX_ID_BYTES}s")
SENT_AT = struct.Struct("<d")
SLOTS = LAYOUT.size + SENT_AT.size  # where they begin
SLOT = struct.Struct("<Q")
MAX_SLOTS = 1024  # more are not recorded, and then every request may be the cause
UNRECORDED = (1 << 64) - 1  # in the last slot: there are more slots
SIZE = SLOTS + MAX_SLOTS * SLOT.size

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
    sent_at: float = 0.0  # when the engine last sent a message to its front ends; 0: never


def request_number(request_id: str) -> int:
    """Return the number that stands for a request in a slot. Two requests have the same one by accident only,
    and then the second is suspected without reason."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=7).digest(), "little") + 1


class HeartbeatFile:
    """Written by the engine only. Writes are not atomic: a read may mix fields of two heartbeats."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> None:
        first = LAYOUT.pack(time.monotonic(), Phase.STARTING, 0, 0, STARTING_TIMEOUT, b"")
        path.write_bytes(first.ljust(SIZE, b"\0"))

    @classmethod
    def open(cls, path: Path) -> Self:
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), SIZE))

    def read(self) -> Heartbeat:
        written_at, phase, done, total, timeout, name = LAYOUT.unpack(self._memory[: LAYOUT.size])
        request_id = name.rstrip(b"\0").decode(errors="replace")
        (sent_at,) = SENT_AT.unpack_from(self._memory, LAYOUT.size)
        return Heartbeat(written_at, Phase(phase), done, total, timeout, request_id, sent_at)

    def in_slots(self) -> frozenset[int] | None:
        """Return the numbers of the requests that have a slot; None if not all are known."""
        numbers = frozenset(number for (number,) in SLOT.iter_unpack(self._memory[SLOTS:SIZE]))
        return None if UNRECORDED in numbers else numbers - {0}

    def write_slot(self, slot: int, request_id: str | None) -> None:
        """Record which request has a slot; None if no request has it."""
        number = 0 if request_id is None else request_number(request_id)
        if slot >= MAX_SLOTS - 1:
            slot, number = MAX_SLOTS - 1, UNRECORDED
        SLOT.pack_into(self._memory, SLOTS + slot * SLOT.size, number)

    def write_sent(self) -> None:
        """Record that the engine has sent a message to its front ends."""
        SENT_AT.pack_into(self._memory, LAYOUT.size, time.monotonic())

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
