"""Compute how much KV fits in memory, with the arithmetic as text for users.

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
    """The shape of the keys and values of one token."""

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
    block_size: int
    max_model_len: int
    explanation: tuple[str, ...]
    bytes_per_token: int

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def plan_kv(
    shape: KVShape,
    *,
    free_bytes: int,
    fraction: float,
    kv_memory: int | None,
    block_size: int,
    max_model_len: int | None,
    model_max_len: int,
    block_multiple: int = 1,
    num_engines: int = 1,
    draft_shape: KVShape | None = None,
) -> KVPlan:
    """Divide memory into blocks. `block_size` 0: a block as long as the context, rounded up to
    `block_multiple`. `num_engines` share the free memory. A draft model has blocks of its own."""
    if kv_memory is not None:
        budget, lines = kv_memory, [f"KV cache: {format_size(kv_memory)} (kv_memory)"]
    else:
        budget = int(free_bytes * fraction / num_engines)
        shared = f" / {num_engines} engines" if num_engines > 1 else ""
        lines = [f"KV cache: {format_size(free_bytes)} free x {fraction}{shared} = {format_size(budget)}"]
    lines.append(shape.explain())
    bytes_per_token = shape.bytes_per_token
    if draft_shape is not None:
        bytes_per_token += draft_shape.bytes_per_token
        lines.append(f"in the draft model, {draft_shape.explain()}; together {format_size(bytes_per_token)}")
    tokens = budget // bytes_per_token
    target_len = min(max_model_len or model_max_len, model_max_len)
    block_tokens = (
        block_size or min(-(-target_len // block_multiple), tokens // block_multiple) * block_multiple or 1
    )
    num_blocks = tokens // block_tokens
    if num_blocks == 0:
        raise CapacityError(
            f"{'; '.join(lines)}. That is less than one block of {block_tokens} tokens"
            f" ({format_size(block_tokens * bytes_per_token)}): raise kv_memory or kv_fraction,"
            " or free memory"
        )
    if max_model_len is not None and min(max_model_len, model_max_len) > num_blocks * block_tokens:
        raise CapacityError(
            f"{'; '.join(lines)}. {num_blocks * block_tokens:,} tokens fit, but max_model_len is"
            f" {max_model_len:,}: lower it to {num_blocks * block_tokens}, or raise kv_memory or kv_fraction"
        )
    context = min(target_len, num_blocks * block_tokens)
    lines.append(
        f"{format_size(budget)} / ({block_tokens} tokens x {format_size(bytes_per_token)})"
        f" = {num_blocks:,} blocks = {num_blocks * block_tokens:,} tokens"
    )
    lines.append(
        sequences_that_fit(num_blocks * block_tokens // context, context)
        + (f" (the model supports {model_max_len:,})" if context < model_max_len else "")
    )
    return KVPlan(num_blocks, block_tokens, context, tuple(lines), bytes_per_token)


def sequences_that_fit(number: int, length: int) -> str:
    """1 sequence of 2,048 tokens fits; 4 sequences of 512 tokens fit"""
    return f"{counted(number, 'sequence')} of {counted(length, 'token')} {'fits' if number == 1 else 'fit'}"


def free_memory(mapped: int = 0) -> int:
    """Return the bytes of main memory that this process can still allocate.

    `mapped`: bytes of mapped files in constant use. The operating system counts them as available, but would
    have to read them again.
    """
    return min(_free_in_machine() - mapped, _free_in_cgroup(mapped))


def _free_in_machine() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Not Linux: the installed memory, less a third for other processes.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2 // 3


def _free_in_cgroup(mapped: int) -> int:
    """Return the bytes left under a container's limit, which /proc/meminfo does not show."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        details = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 1 << 62
    # The page cache counts as used, but the operating system frees it when memory is needed.
    active = int(details.get("active_file", 0))
    used += max(active, mapped) - active - int(details.get("inactive_file", 0))
    return (1 << 62) if limit == "max" else max(0, int(limit) - used)
