"""Selection of ops by machine and options."""

from pathlib import Path

import pytest
import torch

from octavo import ops
from octavo.errors import ConfigError
from octavo.kernels.library import Isa, KernelLibrary, find_library
from octavo.ops import Batch, BatchSequence, NativeOps, select_ops
from octavo.ops.torch_ops import TorchOps
from octavo.sampling import NativeSampler, TorchSampler

needs_library = pytest.mark.skipif(find_library() is None, reason="no native library was built")


def test_kernels_torch_selects_torch_ops() -> None:
    assert isinstance(select_ops("cpu", torch.float32, kernels="torch"), TorchOps)


def test_torch_ops_have_no_tape_and_no_kernel_times() -> None:
    chosen = select_ops("cpu", torch.float32, kernels="torch")

    def forward(batch: Batch) -> torch.Tensor:
        return batch.token_ids

    assert chosen.capture(forward, block_size=32, max_positions=64) is forward
    assert isinstance(chosen.new_sampler(), TorchSampler)
    assert chosen.kernel_times() is None


@needs_library
def test_native_ops_have_a_tape_a_sampler_and_kernel_times() -> None:
    chosen = select_ops("cpu", torch.float32, kernels="auto", threads=1)
    table = chosen.new_embedding(4, 16)
    table.weights[0].write_rows(0, torch.arange(4.0).repeat_interleave(16).view(4, 16))
    calls = []

    def forward(batch: Batch) -> torch.Tensor:
        calls.append(batch)
        return chosen.embedding(table, batch.token_ids)

    captured = chosen.capture(forward, block_size=32, max_positions=64)
    ids = torch.tensor([3, 1, 2])
    batch = Batch.of(ids, ids, ids, (BatchSequence(0, 3, 3, torch.zeros(1, dtype=torch.int64)),), 32)
    assert captured(batch)[:, 0].tolist() == [3, 1, 2]
    assert len(calls) == 1  # while recording
    assert isinstance(chosen.new_sampler(), NativeSampler)
    times = chosen.kernel_times()
    assert times is not None
    assert times.rows.calls == 1


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_selects_the_best_available_instruction_set(dtype: torch.dtype) -> None:
    chosen = select_ops("cpu", dtype, kernels="auto", threads=1)
    assert isinstance(chosen, NativeOps)
    assert (chosen.dtype, chosen.pool.isa) == (dtype, chosen.pool.library.best_isa)


@needs_library
def test_an_instruction_set_can_be_selected() -> None:
    chosen = select_ops("cpu", torch.float32, kernels="portable", threads=1)
    assert isinstance(chosen, NativeOps)
    assert chosen.pool.isa is Isa.PORTABLE


def test_auto_falls_back_to_torch_and_an_explicit_choice_fails() -> None:
    assert isinstance(select_ops("cpu", torch.float16, kernels="auto"), TorchOps)
    assert isinstance(select_ops("meta", torch.float32, kernels="auto"), TorchOps)
    with pytest.raises(ConfigError, match="--kernels auto or torch"):
        select_ops("cpu", torch.float16, kernels="portable")


def test_without_a_library_auto_uses_torch_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ops, "find_library", lambda: None)
    with caplog.at_level("INFO", logger="octavo"):
        assert isinstance(select_ops("cpu", torch.float32, kernels="auto"), TorchOps)
    assert [record.message for record in caplog.records] == [
        "using torch: no native kernels were built when Octavo was installed"
    ]
    with pytest.raises(ConfigError, match="no library was built"):
        select_ops("cpu", torch.float32, kernels="amx")


@needs_library
def test_an_unavailable_instruction_set_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelLibrary, "best_isa", Isa.AVX2)
    monkeypatch.setattr(KernelLibrary, "has_isa", lambda _, isa: isa in (Isa.PORTABLE, Isa.AVX2))
    with pytest.raises(ConfigError, match="this processor does not support amx; use --kernels avx2 or auto"):
        select_ops("cpu", torch.float32, kernels="amx")


def test_the_library_path_can_be_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", "/somewhere/else.so")
    assert find_library() == Path("/somewhere/else.so")
