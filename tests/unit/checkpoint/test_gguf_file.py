"""The GGUF reader compared with files that `gguf.GGUFWriter` writes and `gguf.GGUFReader` reads."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind

from octavo.checkpoint import gguf_file as gguf_file_module
from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.gguf_file import GgufFile, read_gguf
from octavo.checkpoint.gguf_names import _as_float32
from octavo.errors import CheckpointError
from unit.checkpoint.tiny_gguf import WriteGguf

DEQUANTISABLE = [
    kind
    for kind in Kind
    if kind.name not in ("F32", "Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0")
]


def whole(file: GgufFile, name: str, group: int = 1) -> np.ndarray:
    tensor = file.tensors[name]
    chunks = list(file.read_rows(tensor, group))
    assert all(chunk.start % group == 0 for chunk in chunks)
    assert sum(chunk.source_nbytes for chunk in chunks) == tensor.nbytes
    return np.concatenate([_as_float32(chunk) for chunk in chunks])


def write(path: Path, add: Callable[[gguf.GGUFWriter], object]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_all_metadata_types_are_read_as_plain_values(tmp_path: Path) -> None:
    values = {
        "a.u8": (200, gguf.GGUFValueType.UINT8),
        "a.i8": (-100, gguf.GGUFValueType.INT8),
        "a.u16": (60_000, gguf.GGUFValueType.UINT16),
        "a.i16": (-30_000, gguf.GGUFValueType.INT16),
        "a.u32": (4_000_000_000, gguf.GGUFValueType.UINT32),
        "a.i32": (-2_000_000_000, gguf.GGUFValueType.INT32),
        "a.u64": (1 << 63, gguf.GGUFValueType.UINT64),
        "a.i64": (-(1 << 62), gguf.GGUFValueType.INT64),
        "a.f32": (0.5, gguf.GGUFValueType.FLOAT32),
        "a.f64": (0.1, gguf.GGUFValueType.FLOAT64),
        "a.bool": (True, gguf.GGUFValueType.BOOL),
        "a.string": ("héllo ▁ 🦉", gguf.GGUFValueType.STRING),
    }
    arrays: dict[str, Sequence[object]] = {
        "b.strings": ["", "a", "🦉" * 1000],
        "b.ints": [-1, 5, 7],
        "b.floats": [0.5, -2.0],
        "b.bools": [True, False],
    }

    def add(writer: gguf.GGUFWriter) -> None:
        for key, (value, kind) in values.items():
            writer.add_key_value(key, value, kind)
        for key, array in arrays.items():
            writer.add_array(key, array)

    write(tmp_path / "a.gguf", add)
    metadata = read_gguf(tmp_path / "a.gguf").metadata
    expected = {key: value for key, (value, _) in values.items()} | arrays
    for key, value in expected.items():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
        if isinstance(value, list):
            assert [type(element) for element in metadata[key]] == [type(element) for element in value]


@pytest.mark.parametrize("window", [24, 64, 1000])
def test_strings_across_window_boundaries_are_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(gguf_file_module, "WINDOW_BYTES", window)
    tokens = ["x" * (index * 7 % 97) + "é" for index in range(500)]
    write(tmp_path / "a.gguf", lambda writer: writer.add_array("tokens", tokens))
    assert read_gguf(tmp_path / "a.gguf").metadata["tokens"] == tokens


def test_strings_are_read_lazily(tmp_path: Path) -> None:
    begin = header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 2))
    path = tmp_path / "a.gguf"
    path.write_bytes(begin + text(b"fine") + text(b"\xff\xfe"))
    file = read_gguf(path)
    assert file.entries["k"].count == 2
    bad = len(begin + text(b"fine"))
    with pytest.raises(CheckpointError, match=rf"a\.gguf .* the string at byte {bad} is not UTF-8"):
        _ = file.metadata


@pytest.mark.parametrize("kind", DEQUANTISABLE, ids=lambda kind: kind.name)
def test_chunks_equal_the_dequantised_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 2000)
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    columns = block_elements * max(256 // block_elements, 1)
    raw = np.random.default_rng(1).integers(0, 120, (44, columns // block_elements * block_bytes), np.uint8)
    write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("w", raw, raw_dtype=kind))
    file = read_gguf(tmp_path / "a.gguf")
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    assert file.tensors["w"].shape == expected.shape
    for group in (1, 4):
        np.testing.assert_array_equal(whole(file, "w", group), expected)


def test_a_quantised_vector_is_read_as_one_row(tmp_path: Path) -> None:
    raw = gguf.quants.quantize(np.linspace(-1, 1, 64, dtype=np.float32), Kind.Q8_0)
    write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("v", raw, raw_dtype=Kind.Q8_0))
    file = read_gguf(tmp_path / "a.gguf")
    np.testing.assert_array_equal(whole(file, "v"), gguf.quants.dequantize(raw, Kind.Q8_0))


def test_integer_tensors_are_not_weights(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("w", np.ones((4, 32), np.int32)))
    file = read_gguf(tmp_path / "a.gguf")
    with pytest.raises(CheckpointError, match="w has the type I32"):
        list(file.read_rows(file.tensors["w"]))


def header(
    *, tensors: int = 0, entries: int = 0, body: bytes = b"", version: int = 3, magic: bytes = b"GGUF"
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + body


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def described(name: bytes, dims: list[int], code: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


ONE_U8 = struct.pack("<IB", 0, 1)
BAD_HEADERS = {
    "empty": b"",
    "other format": header(magic=b"GGML"),
    "version 1": header(version=1),
    "big endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "2^60 tensors": header(tensors=1 << 60),
    "2^60 entries": header(entries=1 << 60),
    "entries beyond the file": header(entries=100, body=bytes(64)),
    "endless key": header(entries=1, body=struct.pack("<Q", 1 << 60) + bytes(64)),
    "long key": header(entries=1, body=struct.pack("<Q", 70_000) + bytes(80_000)),
    "endless string": header(entries=1, body=text(b"k") + struct.pack("<IQ", 8, 1 << 62) + bytes(9)),
    "endless array": header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 60) + bytes(9)),
    "endless strings": header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60) + bytes(9)),
    "short strings": header(entries=1, body=text(b"k") + struct.pack("<IIQQQ", 9, 8, 2, 0, 5) + b"x"),
    "array in array": header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)),
    "unknown type": header(entries=1, body=text(b"k") + struct.pack("<I", 77) + bytes(64)),
    "not UTF-8": header(entries=1, body=text(b"\xff\xfe") + ONE_U8),
    "key twice": header(entries=2, body=(text(b"k") + ONE_U8) * 2),
    "alignment 0": header(entries=1, body=text(b"general.alignment") + struct.pack("<II", 4, 0)),
    "alignment 12": header(entries=1, body=text(b"general.alignment") + struct.pack("<II", 4, 12)),
    "alignment text": header(entries=1, body=text(b"general.alignment") + struct.pack("<I", 8) + text(b"3")),
    "no dimensions": header(tensors=1, body=described(b"w", [], 0, 0) + bytes(64)),
    "5 dimensions": header(tensors=1, body=described(b"w", [1] * 5, 0, 0) + bytes(64)),
    "2^32-1 dimensions": header(tensors=1, body=text(b"w") + struct.pack("<I", 0xFFFFFFFF) + bytes(64)),
    "zero size": header(tensors=1, body=described(b"w", [0], 0, 0) + bytes(64)),
    "unknown kind": header(tensors=1, body=described(b"w", [1], 9999, 0) + bytes(64)),
    "half a block": header(tensors=1, body=described(b"w", [33], int(Kind.Q8_0), 0) + bytes(64)),
    "2^120 elements": header(tensors=1, body=described(b"w", [1 << 60, 1 << 60], 0, 0) + bytes(64)),
    "beyond the end": header(tensors=1, body=described(b"w", [4], 0, 1 << 40) + bytes(64)),
    "cut short": header(tensors=1, body=described(b"w", [64], 0, 0) + bytes(64)),
    "unaligned": header(tensors=1, body=described(b"w", [1], 0, 4) + bytes(64)),
    "overlap": header(
        tensors=2, body=described(b"w", [16], 0, 0) + described(b"v", [16], 0, 32) + bytes(256)
    ),
    "tensor twice": header(
        tensors=2, body=described(b"w", [1], 0, 0) + described(b"w", [1], 0, 32) + bytes(256)
    ),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_inconsistent_headers_are_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD_HEADERS[name])
    with pytest.raises(CheckpointError, match=r"bad\.gguf"):
        read_gguf(path)


def test_an_array_over_the_limit_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    elements = gguf_file_module.MAX_ARRAY_ELEMENTS + 1
    with path.open("wb") as out:
        out.write(header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 0, elements)))
        out.truncate(elements * 2)
    with pytest.raises(CheckpointError, match="array element"):
        read_gguf(path)


def test_headers_match_the_gguf_package(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    path = tmp_path / "a.gguf"
    write_tiny_gguf(path)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(fields)
    for key, field in fields.items():
        assert ours.metadata[key] == field.contents(), key
    assert [
        (tensor.name, tuple(int(x) for x in reversed(tensor.shape)), tensor.data_offset, tensor.n_bytes)
        for tensor in sorted(theirs.tensors, key=lambda tensor: tensor.data_offset)
    ] == [(tensor.name, tensor.shape, tensor.offset, tensor.nbytes) for tensor in ours.tensors.values()]
