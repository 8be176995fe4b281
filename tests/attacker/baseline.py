"""Invariant 4: when the attack is over, the server holds what it held before."""

import asyncio
import time
from dataclasses import dataclass, fields
from pathlib import Path

from attacker.attack import COMPLETIONS, Attack
from attacker.findings import Invariant
from attacker.wire import post
from attacks.neighbour import MEBIBYTE, memory

POLL = 0.1  # seconds
MAX_MEMORY_GROWTH = 64 * MEBIBYTE
SPARE_FILES = 2
SPARE_PROCESSES = 2  # a worker per queue of the prompt process, started with the first job
SPARE_TASKS = 2
LARGE = 3 * MEBIBYTE


@dataclass(frozen=True)
class Held:
    """What the server holds. All but memory must be zero or as before."""

    running: float
    waiting: float
    queued: float
    queued_tokens: float
    kv_use: float
    tasks: float
    files: int
    processes: int
    memory: int  # bytes of the front end

    def excess(self, before: "Held") -> str:
        """Return what exceeds the state before; empty if nothing does."""
        spare = {
            "tasks": SPARE_TASKS,
            "files": SPARE_FILES,
            "processes": SPARE_PROCESSES,
            "memory": MAX_MEMORY_GROWTH,
        }
        found = []
        for field in fields(self):
            was, now = getattr(before, field.name), getattr(self, field.name)
            if now > (was + spare[field.name] if field.name in spare else 0):
                found.append(f"{field.name} {now:g} (before: {was:g})")
        return ", ".join(found)


async def look(attack: Attack) -> Held | None:
    """Return what the server holds now; None if it cannot be read."""
    value = await attack.metrics()
    if value is None:
        return None
    pid = attack.server.process.pid
    return Held(
        running=value("num_requests_running"),
        waiting=value("num_requests_waiting"),
        queued=value("num_requests_queued"),
        queued_tokens=value("num_tokens_queued"),
        kv_use=value("kv_cache_usage_perc"),
        tasks=value("asyncio_tasks"),
        files=sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in attack.server.lasting_pids),
        processes=len(attack.server.processes),
        memory=memory(pid, "VmRSS"),
    )


async def check_baseline(attack: Attack, before: Held) -> Held | None:
    """Wait until the server holds no more than before. Hung means that nothing changes for long."""
    now, changed_at, last = None, time.monotonic(), ""
    while time.monotonic() - changed_at < attack.settings.patience:
        now = await look(attack)
        excess = "its metrics cannot be read" if now is None else now.excess(before)
        if not excess:
            return now
        if excess != last:
            last, changed_at = excess, time.monotonic()
        await asyncio.sleep(POLL)
    attack.findings.violate(Invariant.RETURNS_TO_BASELINE, f"the idle server still holds {last}")
    return now


async def check_large_requests(attack: Attack) -> None:
    """Check that bytes of earlier requests are not counted any more: every tenant may send a large body."""
    body = {"prompt": "x" * LARGE, "max_tokens": 1}
    for tenant in (*attack.tenants.honest, *attack.tenants.hostile):
        expected = {"400 context_length_exceeded", "400"}
        note = f"{tenant.name}: a large request to the idle server"
        try:
            async with asyncio.timeout(attack.settings.patience):
                await attack.exchange(post(COMPLETIONS, tenant.key, body), expected, note)
        except TimeoutError:
            attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, f"{note} has no terminal event")
            return
