"""Whether the memory of this machine suffices for one more engine, before it is started.

Memory for KV blocks is allocated at once, but the operating system counts it only when it is written. So the
memory that is free now is partly reserved: for the blocks that the running engines have not used yet.
"""

from collections.abc import Sequence
from pathlib import Path

from octavo.capacity import free_memory
from octavo.config import format_size
from octavo.errors import FleetError
from octavo.protocol import EngineFacts, EngineStats

PROC = Path("/proc")


def check_room(facts: EngineFacts, engines: Sequence[tuple[int, EngineStats]], num_starting: int) -> None:
    """Raise FleetError if another engine does not fit.

    `engines` are the pids and statistics of those that are ready; `num_starting` others will need as much as
    the new one. Only main memory is checked. On an accelerator, the engine itself finds out whether it fits.
    """
    if facts.device != "cpu" or not engines:
        return
    resident = [_resident(pid) for pid, _ in engines]
    used = [_used_kv(facts, stats) for _, stats in engines]
    mapped = min(max(file for _, file in resident), sum(facts.weight_bytes.values()))
    others = min(max(0, anonymous - one) for (anonymous, _), one in zip(resident, used, strict=True))
    needed = facts.kv_bytes + others
    reserved = sum(facts.kv_bytes - one for one in used) + num_starting * needed
    free = free_memory(mapped) - reserved
    if needed > free:
        raise FleetError(
            f"there is no memory for another engine: it needs {format_size(needed)}, of which"
            f" {format_size(facts.kv_bytes)} are for KV blocks, as in the engines that run, and"
            f" {format_size(max(0, free))} are free. Free memory, or restart the server with a smaller"
            " --kv-memory or with more --replicas, which divides the memory between them"
        )


def _used_kv(facts: EngineFacts, stats: EngineStats) -> int:
    return facts.kv_bytes * (stats.blocks_total - stats.blocks_free) // max(1, stats.blocks_total)


def _resident(pid: int) -> tuple[int, int]:
    """Return the bytes of a process in memory: its own, and those of mapped files. 0 if they are unknown."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:  # not Linux, or it has ended
        return 0, 0
    values = dict(line.split(":", 1) for line in lines)
    anonymous, file = (int(values.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile"))
    return 1024 * anonymous, 1024 * file
