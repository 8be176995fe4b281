"""Memory for results, with row strides that avoid cache conflicts."""

import math
from collections.abc import Sequence

import torch

LINE = 32  # bf16 numbers per cache line


def new_rows(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return uninitialised rows [rows, ...]. A row has no gaps; bf16 rows start an odd number of cache lines
    apart.

    Kernels read and write the same few columns of many rows at a time. If the stride were a power of two or
    close to it, these columns would map to the same few cache sets and evict each other.
    """
    if dtype != torch.bfloat16:
        return torch.empty(tuple(shape), dtype=dtype)  # logits, which must have no gaps; or float32 models
    num_rows, width = shape[0], math.prod(shape[1:])
    num_lines = -(-width // LINE) | 1
    rows = torch.empty(num_rows, num_lines * LINE, dtype=dtype).narrow(1, 0, width)
    return rows if len(shape) == 2 else rows.view(num_rows, *shape[1:])
