"""How much KV fits this machine, as arithmetic that a person can follow.

Pure functions: the engine calls them after the weights are loaded, `octavo inspect` before.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.config import counted, format_size
from octavo.errors import CapacityError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class KVShape:
    """What one token leaves behind in every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    item_bytes: int

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.item_bytes

    def explain(self) -> str:
        return (
            f"a token takes {self.num_layers} layers x 2 (key, value) x {self.num_kv_heads} heads"
            f" x {self.head_dim} x {self.item_bytes} B = {format_size(self.bytes_per_token)}"
        )


@dataclass(frozen=True)
class KVPlan:
    num_blocks: int
    page_size: int
    max_model_len: int
    explanation: tuple[str, ...]
    bytes_per_token: int

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.page_size


def plan_kv(
    shape: KVShape,
    *,
    free_bytes: int,
    fraction: float,
    kv_memory: int | None,
    page_size: int,
    max_model_len: int | None,
    model_max_len: int,
    page_multiple: int = 1,
) -> KVPlan:
    """Divide memory into pages. `page_size` 0: a page as long as the context, rounded up to the multiple."""
    if kv_memory is not None:
        budget, lines = kv_memory, [f"KV cache: {format_size(kv_memory)}, as asked for"]
    else:
        budget = int(free_bytes * fraction)
        lines = [f"KV cache: {format_size(free_bytes)} free x {fraction} = {format_size(budget)}"]
    lines.append(shape.explain())
    tokens = budget // shape.bytes_per_token
    wanted = min(max_model_len or model_max_len, model_max_len)
    page = page_size or min(-(-wanted // page_multiple), tokens // page_multiple) * page_multiple or 1
    num_blocks = tokens // page
    if num_blocks == 0:
        raise CapacityError(
            f"{'; '.join(lines)}. That is not even one page of {page} tokens"
            f" ({format_size(page * shape.bytes_per_token)}): raise kv_memory or kv_fraction, or free memory"
        )
    if max_model_len is not None and min(max_model_len, model_max_len) > num_blocks * page:
        raise CapacityError(
            f"{'; '.join(lines)}. {num_blocks * page:,} tokens fit, but max_model_len asks for"
            f" {max_model_len:,}: lower it to {num_blocks * page}, or raise kv_memory or kv_fraction"
        )
    context = min(wanted, num_blocks * page)
    lines.append(
        f"{format_size(budget)} / ({page} tokens x {format_size(shape.bytes_per_token)})"
        f" = {num_blocks:,} pages = {num_blocks * page:,} tokens"
    )
    lines.append(
        sequences_that_fit(num_blocks * page // context, context)
        + (f" (the model could do {model_max_len:,})" if context < model_max_len else "")
    )
    return KVPlan(num_blocks, page, context, tuple(lines), shape.bytes_per_token)


def sequences_that_fit(number: int, length: int) -> str:
    """1 sequence of 2,048 tokens fits; 4 sequences of 512 tokens fit"""
    return f"{counted(number, 'sequence')} of {counted(length, 'token')} {'fits' if number == 1 else 'fit'}"


def free_memory(mapped: int = 0) -> int:
    """Bytes that this process may still take from the machine's main memory.

    `mapped`: bytes of files that are read all the time. The kernel counts them as memory that can be had, but
    would have to read them again.
    """
    return min(_free_in_machine() - mapped, _free_in_cgroup(mapped))


def _free_in_machine() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Not Linux: what is installed, less a third for everything else that runs there.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2 // 3


def _free_in_cgroup(mapped: int) -> int:
    """A container's limit, which /proc/meminfo does not show."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        details = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 1 << 62
    # Files that were read count as used, but the kernel gives that memory back when it is needed.
    active = int(details.get("active_file", 0))
    used += max(active, mapped) - active - int(details.get("inactive_file", 0))
    return (1 << 62) if limit == "max" else max(0, int(limit) - used)
