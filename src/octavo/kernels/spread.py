"""Memory for results whose rows are read or written a few columns at a time."""

import math
from collections.abc import Sequence

import torch

LINE = 32  # bf16 in a cache line


def new_rows(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """[rows, ...], uninitialised. A row has no gaps; in bf16 the next is an odd number of cache lines away.

    Kernels read and write the same few columns of many rows at a time. Were rows a power of two apart, or
    near it, those would all have their place in the same few lines of a cache, and push each other out.
    """
    if dtype != torch.bfloat16:
        return torch.empty(tuple(shape), dtype=dtype)  # logits, whose reader wants no gaps; or the slow way
    num_rows, width = shape[0], math.prod(shape[1:])
    num_lines = -(-width // LINE) | 1
    rows = torch.empty(num_rows, num_lines * LINE, dtype=dtype).narrow(1, 0, width)
    return rows if len(shape) == 2 else rows.view(num_rows, *shape[1:])
