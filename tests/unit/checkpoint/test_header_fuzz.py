"""Damaged files either load or raise CheckpointError, quickly and with bounded memory."""

import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.checkpoint import open_checkpoint
from octavo.errors import CheckpointError
from unit.checkpoint.tiny_gguf import WriteGguf

MUTATED_FILES = int(os.environ.get("OCTAVO_FUZZ_FILES", "2500"))  # per format
NASTY_INTEGERS = (0, 1, 7, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 60, 1 << 63, (1 << 64) - 1)


def mutate(original: bytes, header_bytes: int, dice: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(min(header_bytes, len(data)) or 1)
        match dice.randrange(7):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.randrange(256)
            case 2:
                data[at : at + 8] = struct.pack("<Q", dice.choice(NASTY_INTEGERS))
            case 3:
                data[at : at + 4] = struct.pack("<I", dice.choice(NASTY_INTEGERS) & 0xFFFFFFFF)
            case 4:
                del data[at : at + dice.randrange(1, 64)]
            case 5:
                data[at:at] = data[at : at + dice.randrange(1, 64)]
            case 6:
                del data[dice.randrange(len(data)) :]
        if not data:
            break
    return bytes(data)


def mutate_digits(header: bytes, dice: random.Random) -> bytes:
    """Change digits only: flipped bits mostly break the JSON, this keeps it valid with wrong numbers."""
    digits = [index for index, byte in enumerate(header) if chr(byte).isdigit()]
    at = dice.choice(digits)
    return header[:at] + str(dice.choice((*NASTY_INTEGERS, -1, 0.5, 10**400))).encode() + header[at + 1 :]


def open_and_read_everything(path: Path) -> bool:
    try:
        checkpoint = open_checkpoint(checkpoint_path=path)
        for name in checkpoint.tensors:
            for chunk in checkpoint.chunks(name):
                assert chunk.values.size
    except CheckpointError:
        return False
    return True


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """tracemalloc includes numpy. Files have a few kilobytes; the reader's window has one megabyte."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def run_all(target: Path, opened: Path, files: Iterator[bytes]) -> tuple[int, int]:
    good = bad = 0
    for content in files:
        target.write_bytes(content)
        began = time.process_time()
        if open_and_read_everything(opened):
            good += 1
        else:
            bad += 1
        assert time.process_time() - began < 1
    return good, bad


@pytest.mark.usefixtures("untraced", "bounded_memory")
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_damaged_gguf(tmp_path: Path, write_tiny_gguf: WriteGguf, architecture: str) -> None:
    path = tmp_path / "a.gguf"
    extra = {f"{architecture}.attention.sliding_window": 8, f"{architecture}.attention.key_length": 16}
    factors = {"rope_freqs.weight": np.ones(8, dtype=np.float32)}
    write_tiny_gguf(path, architecture, metadata=extra, tensors=factors, layers=1)
    original = path.read_bytes()
    header_bytes = original.index(b"blk.0.ffn_down.weight") + 64
    dice = random.Random(architecture)
    files = (mutate(original, header_bytes, dice) for _ in range(MUTATED_FILES // 2))
    good, bad = run_all(path, path, files)
    assert good + bad == MUTATED_FILES // 2
    assert bad > good / 4  # otherwise the damage misses the header and the test is void


@pytest.mark.usefixtures("untraced", "bounded_memory")
def test_damaged_safetensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    save_file({f"layer.{index}.weight": torch.randn(8, index + 1) for index in range(6)}, path)
    original = path.read_bytes()
    length = struct.unpack("<Q", original[:8])[0]
    header, data = original[8 : 8 + length], original[8 + length :]
    dice = random.Random(1)

    def files() -> Iterator[bytes]:
        for index in range(MUTATED_FILES):
            if index % 2:
                yield mutate(original, length + 8, dice)
            else:
                lying = mutate_digits(header, dice)
                yield struct.pack("<Q", len(lying)) + lying + data

    good, bad = run_all(path, tmp_path, files())
    assert good + bad == MUTATED_FILES
    assert bad > MUTATED_FILES / 2


def test_a_damaged_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.zeros(2), "b": torch.zeros(3)}, tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    original = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}).encode()
    dice = random.Random(2)
    good, bad = run_all(
        index, tmp_path, (mutate(original, len(original), dice) for _ in range(MUTATED_FILES // 4))
    )
    assert bad > good
