"""Loading: every tensor reaches its target, one error lists all problems, and peak memory is bounded."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.checkpoint import Checkpoint, open_checkpoint
from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.load import load_weights
from octavo.errors import CheckpointError
from octavo.ops import WeightStorage
from unit.checkpoint.tiny_gguf import WriteGguf


class Target:
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.shape = shape
        self.values = torch.full(shape, torch.nan, dtype=dtype)
        self.format: str | None = None
        self.storage: WeightStorage | None = None

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        raise AssertionError(f"blocks {blocks.shape} for a target of values")

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        self.values[start : start + len(rows)] = rows.to(self.values.dtype)


def checkpoint_of(directory: Path, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    (directory / "config.json").write_text("{}")
    save_file(tensors, directory / "model.safetensors")
    return open_checkpoint(checkpoint_path=directory)


@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_converted_to_the_targets_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: torch.dtype, target: torch.dtype
) -> None:
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 50)
    written = {"matrix": torch.randn(33, 7).to(source), "norm": torch.randn(60).to(source)}
    targets = {name: Target(tuple(tensor.shape), target) for name, tensor in written.items()}
    load_weights(checkpoint_of(tmp_path, written), targets, progress=False)
    for name, tensor in written.items():
        assert torch.equal(targets[name].values, tensor.to(target))


def test_one_error_names_all_mismatches(tmp_path: Path) -> None:
    names = ["fits", "misshapen", "extra.1", "extra.2", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    checkpoint = checkpoint_of(tmp_path, {name: torch.zeros(4, 2) for name in names})
    targets = {name: Target((4, 2)) for name in ("fits", "absent.1", "absent.2")}
    targets["misshapen"] = Target((4, 3))
    with pytest.raises(CheckpointError) as caught:
        load_weights(checkpoint, targets, progress=False)
    assert str(caught.value).endswith(
        "Tensors missing: absent.1, absent.2; unexpected: extra.1, extra.2; "
        "of the wrong shape: misshapen [4, 2] instead of [4, 3]."
    )
    assert targets["fits"].values.isnan().all()


def test_lm_head_is_read_only_if_the_model_has_a_target_for_it(tmp_path: Path) -> None:
    written = {"lm_head.weight": torch.ones(4, 2), "model.embed_tokens.weight": torch.zeros(4, 2)}
    checkpoint = checkpoint_of(tmp_path, written)
    tied = {"model.embed_tokens.weight": Target((4, 2))}
    load_weights(checkpoint, tied, progress=False)
    untied = tied | {"lm_head.weight": Target((4, 2))}
    load_weights(checkpoint, untied, progress=False)
    assert torch.equal(untied["lm_head.weight"].values, torch.ones(4, 2))


def test_progress_is_shown_on_stderr_and_reaches_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoint_of(tmp_path, {"w": torch.zeros(1000, 250)})
    load_weights(checkpoint, {"w": Target((1000, 250))}, progress=False)
    assert capsys.readouterr().err == ""
    load_weights(checkpoint, {"w": Target((1000, 250))}, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(rf"Loading {tmp_path.name}: 100%.*1\.00M/1\.00M", shown.err)


LOAD_AND_MEASURE = """
import sys
from pathlib import Path
import torch
from octavo.checkpoint import open_checkpoint
from octavo.checkpoint.load import load_weights

class Target:
    format = storage = None
    def __init__(self, shape):
        self.shape, self.values = shape, torch.empty(shape, dtype=torch.bfloat16)
    def write_rows(self, start, rows):
        self.values[start : start + len(rows)].copy_(rows)

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

torch.set_num_threads(1)
torch.randn(64, 64).to(torch.bfloat16)
before = kilobytes("VmRSS")
checkpoint = open_checkpoint(checkpoint_path=sys.argv[1])
targets = {name: Target(tensor.shape) for name, tensor in checkpoint.tensors.items()}
load_weights(checkpoint, targets, progress=False)
print((kilobytes("VmHWM") - before) * 1024, sum(target.values.nbytes for target in targets.values()))
"""


def peak_and_weights(path: Path) -> tuple[int, int]:
    run = subprocess.run(
        [sys.executable, "-c", LOAD_AND_MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    peak, weights = map(int, run.stdout.split())
    return peak, weights


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_proc
def test_loading_safetensors_takes_less_than_1_3_times_the_weights(tmp_path: Path) -> None:
    """Tensors are few and large, so a complete copy beside the target would exceed the limit."""
    written = {f"w{index}": torch.ones(18_000, 4096, dtype=torch.bfloat16) for index in range(2)}
    checkpoint_of(tmp_path, written)
    peak, weights = peak_and_weights(tmp_path)
    assert weights == 2 * 18_000 * 4096 * 2
    assert weights <= peak < 1.3 * weights


@needs_proc
@pytest.mark.assets
def test_loading_a_real_gguf_takes_less_than_1_3_times_the_weights(assets: Callable[[str], Path]) -> None:
    peak, weights = peak_and_weights(assets("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    assert weights > 1e9
    assert weights <= peak < 1.3 * weights


def test_a_gguf_reaches_its_targets(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    stored = write_tiny_gguf(tmp_path / "a.gguf", "qwen2")
    checkpoint = open_checkpoint(checkpoint_path=tmp_path)
    targets = {name: Target(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    load_weights(checkpoint, targets, progress=False)
    np.testing.assert_array_equal(
        targets["model.layers.0.mlp.down_proj.weight"].values.numpy(), stored["blk.0.ffn_down.weight"]
    )
    assert not any(target.values.isnan().any() for target in targets.values())
