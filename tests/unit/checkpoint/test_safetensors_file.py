"""The safetensors reader compared with files that the `safetensors` library writes."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.load import _as_torch
from octavo.checkpoint.safetensors_file import SafetensorsStore, open_safetensors, read_header
from octavo.errors import CheckpointError


def whole(store: SafetensorsStore, name: str) -> torch.Tensor:
    chunks = list(store.chunks(name))
    starts = np.cumsum([0] + [len(chunk.values) for chunk in chunks])
    assert [chunk.start for chunk in chunks] == list(starts[:-1])
    assert sum(chunk.source_nbytes for chunk in chunks) == store.tensors[name].nbytes
    return torch.cat([_as_torch(chunk) for chunk in chunks])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read small tensors in many chunks, of which the last one is shorter."""
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 100)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_type_and_shape_round_trips_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes = {"matrix": (37, 13), "long rows": (3, 250), "vector": (301,), "cube": (5, 7, 11), "one": (1,)}
    written = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    store = open_safetensors(tmp_path)
    assert set(store.tensors) == set(written)
    for name, tensor in written.items():
        assert store.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(whole(store, name), tensor)


def test_an_empty_tensor_has_no_chunks(tmp_path: Path) -> None:
    save_file({"empty": torch.zeros(0, 4), "full": torch.ones(2)}, tmp_path / "model.safetensors")
    store = open_safetensors(tmp_path)
    assert list(store.chunks("empty")) == []
    assert torch.equal(whole(store, "full"), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8, torch.float8_e4m3fn])
def test_other_types_are_listed_but_not_read_as_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"odd": torch.ones(4, 4).to(dtype)}, tmp_path / "model.safetensors")
    store = open_safetensors(tmp_path)
    assert store.tensors["odd"].shape == (4, 4)
    with pytest.raises(CheckpointError, match="has element type"):
        next(store.chunks("odd"))


def write_shards(directory: Path) -> dict[str, torch.Tensor]:
    written = {f"layer.{index}": torch.randn(8, 4) for index in range(6)}
    shards = {f"model-{shard}.safetensors": [f"layer.{shard}", f"layer.{shard + 3}"] for shard in range(3)}
    for file, names in shards.items():
        save_file({name: written[name] for name in names}, directory / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return written


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    written = write_shards(tmp_path)
    # A second copy of the weights, which some repositories contain, is not read.
    save_file({"other": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    store = open_safetensors(tmp_path)
    assert set(store.tensors) == set(written)
    assert all(torch.equal(whole(store, name), tensor) for name, tensor in written.items())


@pytest.mark.parametrize(
    ("weight_map", "complaint"),
    [
        ({"layer.0": "../model-0.safetensors"}, "beside the index"),
        ({"layer.0": "model-0.bin"}, "beside the index"),
        ({"layer.0": "model-9.safetensors"}, "lacks the shard"),
        ({"layer.9": "model-0.safetensors"}, "layer.9"),
        ({"layer.0": 3}, "weight_map"),
        (None, "weight_map"),
    ],
)
def test_an_invalid_index_is_rejected(tmp_path: Path, weight_map: object, complaint: str) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=complaint):
        open_safetensors(tmp_path)


def test_several_files_without_an_index_are_rejected(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="that lists their tensors"):
        open_safetensors(tmp_path)


def f32(shape: list[object], begin: object, end: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"a": f32([4], 0, 12)}, "does not fill"),
        ({"a": f32([2], 0, 8)}, "should contain 8 bytes"),
        ({"a": f32([8], 0, 32)}, "should contain 32 bytes"),
        ({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, "starts at byte 4"),
        ({"a": f32([2], 0, 8), "b": f32([1], 12, 16)}, "starts at byte 12"),
        ({"a": f32([1 << 60], 0, 1 << 62)}, "should contain"),
        ({"a": f32([-4], 0, 16)}, "malformed"),
        ({"a": f32([4], 16, 0)}, "does not fill"),
        ({"a": f32([1] * 9, 0, 4)}, "malformed"),
        ({"a": {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]}}, "unknown element type"),
        ({"a": [1, 2]}, "malformed"),
        ([1, 2], "malformed"),
    ],
)
def test_inconsistent_headers_are_rejected(tmp_path: Path, header: object, complaint: str) -> None:
    path = tmp_path / "model.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(CheckpointError, match=complaint):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", b"[" * 100_000])
def test_a_header_longer_than_the_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_header(path)


def test_a_file_truncated_after_opening_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000, 100)}, path)
    store = open_safetensors(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="became shorter"):
        list(store.chunks("a"))
