"""Attention over pages in plain torch, in memory that does not grow with the context."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from octavo.ops.batch import Batch
from octavo.ops.interface import AttentionSpec
from octavo.ops.kv import LayerKV

_QUERY_BLOCK = 256
_KEY_BLOCK = 1024  # cut at multiples of this position, wherever the query is

ReadPages = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def attend_pages(query: torch.Tensor, batch: Batch, kv: LayerKV, spec: AttentionSpec) -> torch.Tensor:
    """[T, heads, head_dim] of queries to the same shape; the pages hold every key the queries see."""
    output = torch.empty_like(query)
    for sequence in batch.sequences:
        read = partial(_read_pages, kv, sequence.blocks, batch.page_size)
        start = sequence.context - sequence.num_rows
        for row in range(0, sequence.num_rows, _QUERY_BLOCK):
            num_rows = min(_QUERY_BLOCK, sequence.num_rows - row)
            rows = slice(sequence.first_row + row, sequence.first_row + row + num_rows)
            output[rows] = _attend_rows(query[rows], start + row, read, spec)
    return output


def _read_pages(
    kv: LayerKV, blocks: torch.Tensor, page_size: int, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [kv_heads, positions, head_dim] of keys and of values; no other row is read."""
    rows = blocks[positions // page_size], positions % page_size
    return kv.keys[rows].float().transpose(0, 1), kv.values[rows].float().transpose(0, 1)


def _attend_rows(
    query: torch.Tensor, first_position: int, read: ReadPages, spec: AttentionSpec
) -> torch.Tensor:
    """Queries at first_position, first_position + 1, ... over the key blocks they see.

    The softmax is carried from block to block: `peak` is a row's largest score so far, `total` and `mixed`
    are its sums of exp(score - peak) and of exp(score - peak) * value.
    """
    num_rows, num_heads = query.shape[:2]
    positions = torch.arange(first_position, first_position + num_rows, device=query.device)
    by_head = query.float().transpose(0, 1)
    peak = query.new_full((num_heads, num_rows, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(peak)
    mixed = torch.zeros_like(by_head)

    for first_key, end_key in _key_blocks(first_position, num_rows, spec.window):
        key_positions = torch.arange(first_key, end_key, device=query.device)
        keys, values = read(key_positions)
        scores = _per_kv_head(by_head, keys.transpose(1, 2)) * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        scores = scores.masked_fill(_unseen(positions, key_positions, spec.window), -torch.inf)

        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        # A row that has seen no key yet has no peak; any finite one leaves its sums at zero.
        finite_peak = new_peak.masked_fill(new_peak == -torch.inf, 0.0)
        weights = torch.exp(scores - finite_peak)
        carried = torch.exp(peak - finite_peak)
        total = total * carried + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * carried + _per_kv_head(weights, values)
        peak = new_peak

    return (mixed / total).transpose(0, 1).to(query.dtype)


def _per_kv_head(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """[heads, rows, n] times [kv_heads, n, m]: heads that share a matrix are stacked, so none is repeated."""
    heads, num_rows, width = rows.shape
    stacked = rows.reshape(len(matrices), -1, width)
    return torch.matmul(stacked, matrices).view(heads, num_rows, -1)


def _key_blocks(first_position: int, num_rows: int, window: int | None) -> Iterator[tuple[int, int]]:
    """Ranges of the positions that at least one of the rows sees."""
    end = first_position + num_rows
    key = 0 if window is None else max(0, first_position - window + 1)
    while key < end:
        block_end = min(end, (key // _KEY_BLOCK + 1) * _KEY_BLOCK)
        yield key, block_end
        key = block_end


def _unseen(positions: torch.Tensor, key_positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """bool [rows, keys]"""
    distance = positions[:, None] - key_positions[None, :]
    unseen = distance < 0
    if window is not None:
        unseen |= distance >= window
    return unseen
