"""Time accounting of the kernel thread pool, and the probes that measure the machine."""

import ctypes
import time
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import attention, gemm, rows, sampling
from octavo.kernels.attention import KVBlocks, SequenceTable
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Isa, KernelLibrary, KernelPool, Memory
from octavo.protocol import KernelTimes

OpenPool = Callable[..., KernelPool]
X = torch.ones(3, 64, dtype=torch.bfloat16)
GAIN = torch.ones(64)


def call_gemm(pool: KernelPool) -> int:
    weight = PackedMatrix(pool.library, 32, 64, "BF16")
    gemm.multiply(pool, X, weight, None, torch.bfloat16)
    return 1


def call_attention(pool: KernelPool) -> int:
    kv = KVBlocks(pool.library, num_blocks=1, block_size=32, kv_heads=1, head_dim=64, dtype=torch.bfloat16)
    heads = X.unsqueeze(1)
    attention.write_kv(pool, kv, heads, heads, torch.arange(3))
    attention.attend(pool, kv, heads, SequenceTable.from_lists([0], [3], [3], [torch.tensor([0])]), scale=1.0)
    return 2


def call_rows(pool: KernelPool) -> int:
    rows.rms_norm(pool, X, GAIN, 1e-6)
    rows.add_rms_norm(pool, X, X, GAIN, 1e-6)
    table = torch.ones(4, 32)
    rows.rope(pool, X.unsqueeze(1), torch.arange(3), table, table)
    rows.gated(pool, X, rows.Activation.SILU)
    rows.add(pool, X, X)
    rows.scale(pool, X, 2.0)
    rows.softcap(pool, X.clone(), 2.0)
    rows.rope_angles(pool, GAIN, 0, 4)
    return 8


def call_sampling(pool: KernelPool) -> int:
    sampling.sample(pool, torch.rand(1, 50), [sampling.Row(temperature=0.0)])
    return 1


CALLS = {"gemm": call_gemm, "attention": call_attention, "rows": call_rows, "sampling": call_sampling}


@pytest.mark.parametrize("kind", KernelTimes.__struct_fields__)
def test_every_c_function_counts_towards_one_kind(
    kind: str, library: KernelLibrary, open_pool: OpenPool
) -> None:
    pool = open_pool(library.best_isa)
    before, began = pool.times(), time.perf_counter()
    num_calls = CALLS[kind](pool)
    spent, wall = pool.times() - before, time.perf_counter() - began
    assert getattr(spent, kind).calls == num_calls
    assert 0 < getattr(spent, kind).seconds == spent.seconds < wall
    assert all(getattr(spent, other).calls == 0 for other in CALLS if other != kind)


def test_pools_count_times_separately(library: KernelLibrary) -> None:
    pool, other = (KernelPool(library, 1, Isa.PORTABLE) for _ in range(2))
    call_gemm(pool)
    assert (pool.times().gemm.calls, other.times().gemm.calls) == (1, 0)
    assert other.times().seconds == 0


def test_times_reject_null_pointers(library: KernelLibrary) -> None:
    with pytest.raises(ValueError, match="a pointer is null"):
        library.check(library.functions.ov_pool_times(None, None))


@pytest.mark.parametrize("isa", list(Isa))
def test_the_read_probe_measures_a_speed(isa: Isa, library: KernelLibrary, open_pool: OpenPool) -> None:
    pool, memory = open_pool(isa), Memory(library, 16 << 20)
    assert memory.address is not None
    ctypes.memset(memory.address, 1, memory.num_bytes)
    for num_bytes in (
        8 << 10,
        (4 << 20) + 8191,
        16 << 20,
    ):  # less than a chunk, slightly more, several
        assert 0 < pool.probe_read(memory, 0, num_bytes) < 1e13


def test_the_read_probe_stays_within_its_memory(library: KernelLibrary, open_pool: OpenPool) -> None:
    pool, memory = open_pool(Isa.PORTABLE), Memory(library, 1 << 20)
    for start, num_bytes in ((0, (1 << 20) + 1), (1 << 20, 1), (-64, 64)):
        with pytest.raises(ValueError, match="are not inside a memory of"):
            pool.probe_read(memory, start, num_bytes)
    assert pool.probe_read(memory, 0, 4096) == 0  # less than a unit
    assert pool.probe_read(memory, 8, 65536) == 0  # not aligned


def test_the_tile_probe_needs_amx(open_pool: OpenPool) -> None:
    assert open_pool(Isa.PORTABLE).probe_amx(100) == 0
    amx = open_pool(Isa.AMX)
    assert amx.probe_amx(0) == 0
    assert 0 < amx.probe_amx(20_000) < 1e15
