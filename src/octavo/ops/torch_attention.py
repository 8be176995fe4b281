"""Attention over KV blocks in plain torch. Its memory use does not grow with the context."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from octavo.ops.batch import Batch
from octavo.ops.interface import AttentionSpec
from octavo.ops.kv import LayerKV

_QUERY_TILE = 256
_KEY_TILE = 1024  # tiles start at multiples of this position, independent of the query

ReadBlocks = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def attend_blocks(query: torch.Tensor, batch: Batch, kv: LayerKV, spec: AttentionSpec) -> torch.Tensor:
    """Attend with queries [T, heads, head_dim] and return the same shape. The KV blocks contain every key
    that the queries see."""
    output = torch.empty_like(query)
    for sequence in batch.sequences:
        read = partial(_read_blocks, kv, sequence.blocks, batch.block_size)
        start = sequence.context - sequence.num_rows
        for row in range(0, sequence.num_rows, _QUERY_TILE):
            num_rows = min(_QUERY_TILE, sequence.num_rows - row)
            rows = slice(sequence.first_row + row, sequence.first_row + row + num_rows)
            output[rows] = _attend_rows(query[rows], start + row, read, spec)
    return output


def _read_blocks(
    kv: LayerKV, blocks: torch.Tensor, block_size: int, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 [kv_heads, positions, head_dim] of keys and of values. No other row is read."""
    rows = blocks[positions // block_size], positions % block_size
    return kv.keys[rows].float().transpose(0, 1), kv.values[rows].float().transpose(0, 1)


def _attend_rows(
    query: torch.Tensor, first_position: int, read: ReadBlocks, spec: AttentionSpec
) -> torch.Tensor:
    """Attend with queries at first_position, first_position + 1, ... over the keys they see, tile by tile.

    The softmax is accumulated over the tiles: `peak` is a row's largest score so far, `total` and `mixed` are
    its sums of exp(score - peak) and of exp(score - peak) * value.
    """
    num_rows, num_heads = query.shape[:2]
    positions = torch.arange(first_position, first_position + num_rows, device=query.device)
    by_head = query.float().transpose(0, 1)
    peak = query.new_full((num_heads, num_rows, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(peak)
    mixed = torch.zeros_like(by_head)

    for first_key, end_key in _key_tiles(first_position, num_rows, spec.window):
        key_positions = torch.arange(first_key, end_key, device=query.device)
        keys, values = read(key_positions)
        scores = _per_kv_head(by_head, keys.transpose(1, 2)) * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        scores = scores.masked_fill(_unseen(positions, key_positions, spec.window), -torch.inf)

        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        # A row that has seen no key yet has no peak. Any finite value keeps its sums at zero.
        finite_peak = new_peak.masked_fill(new_peak == -torch.inf, 0.0)
        weights = torch.exp(scores - finite_peak)
        carried = torch.exp(peak - finite_peak)
        total = total * carried + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * carried + _per_kv_head(weights, values)
        peak = new_peak

    return (mixed / total).transpose(0, 1).to(query.dtype)


def _per_kv_head(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Multiply [heads, rows, n] by [kv_heads, n, m]. Heads that share a matrix are stacked, so no matrix is
    copied."""
    heads, num_rows, width = rows.shape
    stacked = rows.reshape(len(matrices), -1, width)
    return torch.matmul(stacked, matrices).view(heads, num_rows, -1)


def _key_tiles(first_position: int, num_rows: int, window: int | None) -> Iterator[tuple[int, int]]:
    """Yield ranges of the positions that at least one of the rows sees."""
    end = first_position + num_rows
    key = 0 if window is None else max(0, first_position - window + 1)
    while key < end:
        tile_end = min(end, (key // _KEY_TILE + 1) * _KEY_TILE)
        yield key, tile_end
        key = tile_end


def _unseen(positions: torch.Tensor, key_positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return bool [rows, keys]: which keys a row does not see."""
    distance = positions[:, None] - key_positions[None, :]
    unseen = distance < 0
    if window is not None:
        unseen |= distance >= window
    return unseen
