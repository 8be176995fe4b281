"""The engine's account of its time, and the probes of the machine."""

import ctypes
import time
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import attention, gemm, rows, sampling
from octavo.kernels.attention import KVPages, SequenceTable
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Engine, Isa, KernelLibrary, Memory
from octavo.protocol import KernelTimes

OpenEngine = Callable[..., Engine]
X = torch.ones(3, 64, dtype=torch.bfloat16)
GAIN = torch.ones(64)


def call_gemm(engine: Engine) -> int:
    weight = PackedMatrix(engine.library, 32, 64, "BF16")
    gemm.multiply(engine, X, weight, None, torch.bfloat16)
    return 1


def call_attention(engine: Engine) -> int:
    pages = KVPages(engine.library, num_blocks=1, page_size=32, kv_heads=1, head_dim=64, dtype=torch.bfloat16)
    heads = X.unsqueeze(1)
    attention.write_kv(engine, pages, heads, heads, torch.arange(3))
    attention.attend(
        engine, pages, heads, SequenceTable.from_lists([0], [3], [3], [torch.tensor([0])]), scale=1.0
    )
    return 2


def call_rows(engine: Engine) -> int:
    rows.rms_norm(engine, X, GAIN, 1e-6)
    rows.add_rms_norm(engine, X, X, GAIN, 1e-6)
    table = torch.ones(4, 32)
    rows.rope(engine, X.unsqueeze(1), torch.arange(3), table, table)
    rows.gated(engine, X, rows.Activation.SILU)
    rows.add(engine, X, X)
    rows.scale(engine, X, 2.0)
    rows.softcap(engine, X.clone(), 2.0)
    rows.rope_angles(engine, GAIN, 0, 4)
    return 8


def call_sampling(engine: Engine) -> int:
    sampling.sample(engine, torch.rand(1, 50), [sampling.Row(temperature=0.0)])
    return 1


CALLS = {"gemm": call_gemm, "attention": call_attention, "rows": call_rows, "sampling": call_sampling}


@pytest.mark.parametrize("kind", KernelTimes.__struct_fields__)
def test_every_border_function_counts_for_its_kind_alone(
    kind: str, library: KernelLibrary, open_engine: OpenEngine
) -> None:
    engine = open_engine(library.best_isa)
    before, began = engine.times(), time.perf_counter()
    num_calls = CALLS[kind](engine)
    spent, wall = engine.times() - before, time.perf_counter() - began
    assert getattr(spent, kind).calls == num_calls
    assert 0 < getattr(spent, kind).seconds == spent.seconds < wall
    assert all(getattr(spent, other).calls == 0 for other in CALLS if other != kind)


def test_engines_keep_accounts_of_their_own(library: KernelLibrary) -> None:
    engine, other = (Engine(library, 1, Isa.PORTABLE) for _ in range(2))
    call_gemm(engine)
    assert (engine.times().gemm.calls, other.times().gemm.calls) == (1, 0)
    assert other.times().seconds == 0


def test_times_want_pointers(library: KernelLibrary) -> None:
    with pytest.raises(ValueError, match="a pointer is null"):
        library.check(library.functions.ov_engine_times(None, None))


@pytest.mark.parametrize("isa", list(Isa))
def test_the_read_probe_measures_a_speed(isa: Isa, library: KernelLibrary, open_engine: OpenEngine) -> None:
    engine, memory = open_engine(isa), Memory(library, 16 << 20)
    assert memory.address is not None
    ctypes.memset(memory.address, 1, memory.num_bytes)
    for num_bytes in (8 << 10, (4 << 20) + 8191, 16 << 20):  # less than a chunk, a bit more, several
        assert 0 < engine.probe_read(memory, 0, num_bytes) < 1e13


def test_the_read_probe_stays_inside_its_memory(library: KernelLibrary, open_engine: OpenEngine) -> None:
    engine, memory = open_engine(Isa.PORTABLE), Memory(library, 1 << 20)
    for start, num_bytes in ((0, (1 << 20) + 1), (1 << 20, 1), (-64, 64)):
        with pytest.raises(ValueError, match="are not in a memory of"):
            engine.probe_read(memory, start, num_bytes)
    assert engine.probe_read(memory, 0, 4096) == 0  # less than a unit
    assert engine.probe_read(memory, 8, 65536) == 0  # not aligned


def test_the_tile_probe_needs_amx(open_engine: OpenEngine) -> None:
    assert open_engine(Isa.PORTABLE).probe_amx(100) == 0
    amx = open_engine(Isa.AMX)
    assert amx.probe_amx(0) == 0
    assert 0 < amx.probe_amx(20_000) < 1e15
