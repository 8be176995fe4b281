"""Random weight blocks of every quantised format: codes are arbitrary bits, scales are small and finite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.weight_format import FORMATS

Bytes = npt.NDArray[np.uint8]
SPREAD = 0.02  # approximate standard deviation of the weights


@dataclass(frozen=True)
class _Field:
    """Bytes of a weight block that are not codes: their offset, and how their values follow from [0, 1)."""

    offset: int
    draw: Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]


def _half(typical: float) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]:
    return lambda u: ((0.5 + u) * typical).astype("<f2")


def _float(typical: float) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]:
    return lambda u: ((0.5 + u) * typical).astype("<f4")


def _byte(lowest: int, count: int) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]:
    return lambda u: (lowest + np.floor(u * count)).astype(np.uint8)


# A scale is SPREAD divided by the typical magnitude of the codes that it multiplies.
_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "Q4_K": (_Field(0, _half(SPREAD / 300)), _Field(2, _half(SPREAD / 40))),
    "Q5_K": (_Field(0, _half(SPREAD / 600)), _Field(2, _half(SPREAD / 40))),
    "Q6_K": (_Field(208, _half(SPREAD / 1000)),),
    "Q8_0": (_Field(0, _half(SPREAD / 73)),),
    "Q4_0": (_Field(0, _half(SPREAD / 5)),),
    "Q4_1": (_Field(0, _half(SPREAD / 5)), _Field(2, _half(-SPREAD * 1.5))),
    "Q5_0": (_Field(0, _half(SPREAD / 9)),),
    "Q5_1": (_Field(0, _half(SPREAD / 9)), _Field(2, _half(-SPREAD * 1.7))),
    "Q2_K": (_Field(80, _half(SPREAD / 20)), _Field(82, _half(SPREAD / 15))),
    "Q3_K": (_Field(108, _half(SPREAD / 40)),),
    "IQ4_NL": (_Field(0, _half(SPREAD / 65)),),
    "IQ4_XS": (_Field(0, _half(SPREAD / 1000)),),
    "MXFP4": (_Field(0, _byte(119, 3)),),  # a power of two, where 127 means 1; codes are halves of 0 to 12
    "INT4_32": (_Field(0, _float(SPREAD / 5)), _Field(4, _byte(6, 5))),
    "INT4_128": (_Field(0, _float(SPREAD / 5)), _Field(4, _byte(6, 5))),
    "INT8_32": (_Field(0, _float(SPREAD / 73)),),
    "INT8_128": (_Field(0, _float(SPREAD / 73)),),
    "FP8_32": (_Field(0, _float(SPREAD / 120)),),
    "FP8_128": (_Field(0, _float(SPREAD / 120)),),
}


def random_blocks(format: str, num_rows: int, k: int, random: np.random.Generator) -> Bytes:
    """Return random weight blocks as uint8 [num_rows, bytes per row]."""
    form = FORMATS[format]
    num_blocks = num_rows * form.row_bytes(k) // form.block_bytes
    blocks: Bytes = random.integers(0, 256, (num_blocks, form.block_bytes), dtype=np.uint8)
    if format.startswith("FP8"):
        blocks[blocks & 0x7F == 0x7F] = 0  # NaN
    for field in _FIELDS[format]:
        drawn = field.draw(random.random(num_blocks))
        raw = drawn.view(np.uint8).reshape(num_blocks, -1)
        blocks[:, field.offset : field.offset + raw.shape[1]] = raw
    return blocks.reshape(num_rows, -1)
