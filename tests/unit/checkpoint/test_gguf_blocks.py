"""Quantised rows of a GGUF file reach their targets unchanged: the same bytes, in the model's order."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from octavo.checkpoint import open_checkpoint
from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.load import load_weights
from octavo.errors import CheckpointError
from octavo.weight_format import BadBlocks
from unit.checkpoint.test_load_weights import Target
from unit.checkpoint.tiny_gguf import WriteGguf

KINDS = {
    "token_embd.weight": Kind.Q6_K,
    "blk.0.attn_q.weight": Kind.Q4_0,
    "blk.0.attn_k.weight": Kind.Q5_1,
    "blk.0.attn_v.weight": Kind.Q8_0,
    "blk.0.attn_output.weight": Kind.BF16,
    "blk.0.ffn_gate.weight": Kind.F16,
    "blk.0.ffn_up.weight": Kind.TQ2_0,
}
HEAD = 64  # rows
NAN = b"\xff\x7c"  # as a scale in float16


class BlockTarget(Target):
    """Keeps weight blocks; a row that starts with `NAN` is damaged."""

    def __init__(self, shape: tuple[int, ...], format: str, row_bytes: int) -> None:
        super().__init__(shape)
        self.format = format
        self.blocks = torch.zeros(shape[0], row_bytes, dtype=torch.uint8)
        self.starts: list[int] = []

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        raise AssertionError("values for a target of blocks")

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        if any(row[:2].numpy().tobytes() == NAN for row in blocks):
            raise BadBlocks("a scale is not finite")
        self.blocks[start : start + len(blocks)] = blocks
        self.starts.append(start)


@pytest.fixture
def mixed(tmp_path: Path, write_tiny_gguf: WriteGguf) -> Path:
    write_tiny_gguf(tmp_path / "a.gguf", layers=1, kinds=KINDS, hidden=256)
    return tmp_path / "a.gguf"


def in_file(path: Path, name: str) -> np.ndarray:
    (tensor,) = [tensor for tensor in GGUFReader(path).tensors if tensor.name == name]
    return np.array(tensor.data)


def heads_apart(rows: np.ndarray) -> np.ndarray:
    """Return the row order of the model: the even rows of each head first."""
    order = [
        head + row for head in range(0, len(rows), HEAD) for first in (0, 1) for row in range(first, HEAD, 2)
    ]
    return rows[order]


def test_blocks_match_the_file_with_heads_reordered(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 64 * 256)  # several chunks
    checkpoint = open_checkpoint(checkpoint_path=mixed)
    layer = "model.layers.0"
    expected = {
        "model.embed_tokens.weight": ("Q6_K", in_file(mixed, "token_embd.weight")),
        f"{layer}.self_attn.q_proj.weight": ("Q4_0", heads_apart(in_file(mixed, "blk.0.attn_q.weight"))),
        f"{layer}.self_attn.k_proj.weight": ("Q5_1", heads_apart(in_file(mixed, "blk.0.attn_k.weight"))),
        f"{layer}.self_attn.v_proj.weight": ("Q8_0", in_file(mixed, "blk.0.attn_v.weight")),
        f"{layer}.mlp.down_proj.weight": ("Q8_0", in_file(mixed, "blk.0.ffn_down.weight")),
    }
    assert checkpoint.formats == {name: format for name, (format, _) in expected.items()}
    targets: dict[str, Target] = {
        name: BlockTarget(tensor.shape, expected[name][0], expected[name][1].shape[1])
        if name in expected
        else Target(tensor.shape)
        for name, tensor in checkpoint.tensors.items()
    }
    load_weights(checkpoint, targets, progress=False, threads=3)
    for name, (_, rows) in expected.items():
        target = targets[name]
        assert isinstance(target, BlockTarget)
        assert np.array_equal(target.blocks.numpy(), rows)
        assert all(start % 32 == 0 for start in target.starts)
    query = targets[f"{layer}.self_attn.q_proj.weight"]
    assert isinstance(query, BlockTarget)
    assert len(query.starts) == 4
    # Read as values, the same rows are widened.
    values = np.concatenate([chunk.values for chunk in checkpoint.chunks(f"{layer}.self_attn.q_proj.weight")])
    assert np.array_equal(values, dequantize(query.blocks.numpy(), Kind.Q4_0))
    assert not any(target.values.isnan().any() for name, target in targets.items() if name not in expected)


def test_blocks_of_tensors_not_stored_in_weight_blocks_raise_an_error(mixed: Path) -> None:
    checkpoint = open_checkpoint(checkpoint_path=mixed)
    for name in (
        "model.norm.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ):
        assert name not in checkpoint.formats
        with pytest.raises(ValueError, match="not stored in weight blocks"):
            next(checkpoint.blocks(name))


def test_errors_name_the_damaged_tensor_whether_kept_or_widened(mixed: Path) -> None:
    name = "model.layers.0.self_attn.v_proj.weight"
    checkpoint = open_checkpoint(checkpoint_path=mixed)
    rows = in_file(mixed, "blk.0.attn_v.weight")
    (tensor,) = [tensor for tensor in GGUFReader(mixed).tensors if tensor.name == "blk.0.attn_v.weight"]
    with mixed.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 40 * rows.shape[1])
        file.write(NAN)
    kept: Target = BlockTarget((128, 256), "Q8_0", rows.shape[1])
    for target in (kept, Target((128, 256))):
        targets = {each: Target(info.shape) for each, info in checkpoint.tensors.items()} | {name: target}
        with pytest.raises(
            CheckpointError, match=rf"{name} \(Q8_0\) of a is damaged in rows 0 to 127: .*Download"
        ):
            load_weights(checkpoint, targets, progress=False)
