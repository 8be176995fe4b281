"""Weight blocks of every quantised format and their values, by `gguf` or, for our own formats, numpy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from octavo.weight_format import FORMATS

OWN = tuple(name for name in FORMATS if name.startswith(("INT", "FP8")))

# Byte offsets of the float16 numbers in a weight block: scales and minima.
HALVES = {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
NOT_FINITE: dict[str, npt.NDArray[Any]] = {
    "half": np.array([0x7C00, 0xFC00, 0x7E01], np.uint16),
    "float": np.array([np.inf, np.nan], np.float32),
}

Bytes = npt.NDArray[np.uint8]


def random_blocks(name: str, n: int, k: int, seed: int = 0) -> Bytes:
    """Return uint8 [n, bytes of a row]: random codes, and ordinary scales of both signs."""
    rng = np.random.default_rng(seed)
    num_blocks = n * (k // FORMATS[name].block_k)
    blocks = rng.integers(0, 256, (num_blocks, FORMATS[name].block_bytes), dtype=np.uint8)
    scales = rng.standard_normal((num_blocks, 2)) * 0.02
    return _with_scales(name, blocks, scales).reshape(n, -1)


def exhaustive_blocks(name: str, n: int, k: int) -> Bytes:
    """Return weight blocks in which every byte takes every value, with scales of every magnitude."""
    num_blocks, size = n * (k // FORMATS[name].block_k), FORMATS[name].block_bytes
    assert num_blocks >= 256
    blocks = (np.arange(num_blocks)[:, None] + 37 * np.arange(size)).astype(np.uint8)
    halves = np.arange(0, 0x7C00, 31, dtype=np.uint16)  # all exponents, including subnormal numbers and zero
    order = np.random.default_rng(1).integers(0, len(halves), (num_blocks, 2))
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (num_blocks, 2))
    return _with_scales(name, blocks, halves.view(np.float16)[order] * signs).reshape(n, -1)


def _with_scales(name: str, blocks: Bytes, scales: npt.NDArray[np.float64]) -> Bytes:
    for place, scale in zip(HALVES.get(name, ()), scales.T, strict=False):
        blocks[:, place : place + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = np.minimum(blocks[:, 0], 252)  # greater values are not finite
    if name in OWN:
        blocks[:, :4] = scales[:, :1].astype(np.float32).view(np.uint8)
    if name.startswith("INT4"):
        blocks[:, 4] %= 16
    if name.startswith("FP8"):
        codes = blocks[:, 4:]
        codes[(codes & 0x7F) == 0x7F] = 0x3A  # NaN
    return blocks


def widened(name: str, blocks: Bytes) -> torch.Tensor:
    """Return bfloat16 [n, k]: the weights as if widened while loading."""
    with np.errstate(all="ignore"):
        values = _own_values(name, blocks) if name in OWN else dequantize(blocks, GGMLQuantizationType[name])
    return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(torch.bfloat16)


def _own_values(name: str, rows: Bytes) -> npt.NDArray[np.float32]:
    blocks = rows.reshape(-1, FORMATS[name].block_bytes)
    scales = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    if name.startswith("INT4"):
        nibbles = np.stack([blocks[:, 5:] & 15, blocks[:, 5:] >> 4], axis=-1).reshape(len(blocks), -1)
        codes = nibbles.astype(np.float32) - blocks[:, 4:5]
    elif name.startswith("INT8"):
        codes = blocks[:, 4:].view(np.int8).astype(np.float32)
    else:
        bits = torch.from_numpy(np.ascontiguousarray(blocks[:, 4:]))
        codes = bits.view(torch.float8_e4m3fn).float().numpy()
    return (codes * scales).reshape(len(rows), -1)


def damaged(name: str, blocks: Bytes, row: int) -> list[Bytes]:
    """Return copies with one non-finite scale or weight in the row each."""
    width = {"half": 2, "float": 4}
    kind = "float" if name in OWN else "half"
    copies = []
    for place in (0,) if name in OWN else HALVES.get(name, ()):
        for value in NOT_FINITE[kind]:
            copy = blocks.copy()
            start = blocks.shape[1] - FORMATS[name].block_bytes + place  # in the row's last weight block
            copy[row, start : start + width[kind]] = np.array([value]).view(np.uint8)
            copies.append(copy)
    if name.startswith("FP8"):
        copy = blocks.copy()
        copy[row, -1] = 0xFF
        copies.append(copy)
    return copies
