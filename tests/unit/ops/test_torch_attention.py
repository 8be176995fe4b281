"""Paged attention compared with the formula, one query and one head at a time, in float64."""

from dataclasses import dataclass, replace
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.ops import AttentionSpec, Batch, BatchSequence, LayerKV, select_ops
from octavo.ops import torch_attention as attention_module


@dataclass(frozen=True)
class _Shape:
    """Sequences as (tokens computed before, tokens computed now)."""

    sequences: tuple[tuple[int, int], ...]
    kv_heads: int
    group: int
    head_dim: int
    block_size: int


@dataclass(frozen=True)
class _Case:
    query: torch.Tensor
    key: torch.Tensor  # of this batch's rows
    value: torch.Tensor
    batch: Batch
    kv: LayerKV
    full_keys: list[torch.Tensor]  # per sequence, [context, kv_heads, head_dim]
    full_values: list[torch.Tensor]


def _make_case(shape: _Shape, seed: int) -> _Case:
    """Blocks in random order hold earlier keys and values; everything else in them is NaN."""
    generator = torch.Generator().manual_seed(seed)

    def random(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, shape.head_dim, generator=generator)

    contexts = [before + now for before, now in shape.sequences]
    num_blocks = [-(-context // shape.block_size) for context in contexts]
    free = torch.randperm(sum(num_blocks) + 2, generator=generator)
    pool = (len(free), shape.block_size, shape.kv_heads, shape.head_dim)
    kv = LayerKV(torch.full(pool, torch.nan), torch.full(pool, torch.nan))
    full_keys = [random(context, shape.kv_heads) for context in contexts]
    full_values = [random(context, shape.kv_heads) for context in contexts]
    sequences: list[BatchSequence] = []
    slots, positions = [], []
    for index, (before, now) in enumerate(shape.sequences):
        blocks = free[sum(num_blocks[:index]) : sum(num_blocks[: index + 1])]
        every = torch.arange(contexts[index])
        rows = blocks[every // shape.block_size] * shape.block_size + every % shape.block_size
        kv.keys.flatten(0, 1)[rows[:before]] = full_keys[index][:before]
        kv.values.flatten(0, 1)[rows[:before]] = full_values[index][:before]
        first_row = sum(sequence.num_rows for sequence in sequences)
        sequences.append(BatchSequence(first_row, now, contexts[index], blocks))
        slots.append(rows[before:])
        positions.append(every[before:])
    starts = [before for before, _ in shape.sequences]
    all_positions = torch.cat(positions)
    return _Case(
        query=random(len(all_positions), shape.kv_heads * shape.group),
        key=torch.cat([keys[start:] for keys, start in zip(full_keys, starts, strict=True)]),
        value=torch.cat([values[start:] for values, start in zip(full_values, starts, strict=True)]),
        batch=Batch.of(
            torch.zeros_like(all_positions),
            all_positions,
            torch.cat(slots),
            tuple(sequences),
            shape.block_size,
        ),
        kv=kv,
        full_keys=full_keys,
        full_values=full_values,
    )


def _attend(case: _Case, spec: AttentionSpec) -> torch.Tensor:
    ops = select_ops("cpu", torch.float32)
    return ops.attention(case.query, case.key, case.value, batch=case.batch, kv=case.kv, spec=spec)


def _formula(case: _Case, spec: AttentionSpec) -> torch.Tensor:
    output = torch.empty(case.query.shape, dtype=torch.float64)
    num_heads = case.query.shape[1]
    for sequence, keys, values in zip(case.batch.sequences, case.full_keys, case.full_values, strict=True):
        for row in range(sequence.first_row, sequence.first_row + sequence.num_rows):
            position = int(case.batch.positions[row])
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            for head in range(num_heads):
                kv_head = head * keys.shape[1] // num_heads
                seen = keys[first : position + 1, kv_head].double()
                scores = seen @ case.query[row, head].double() * spec.scale
                if spec.softcap is not None:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                output[row, head] = scores.softmax(0) @ values[first : position + 1, kv_head].double()
    return output.flatten(1)


@given(
    shape=st.builds(
        _Shape,
        sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=3).map(
            tuple
        ),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 3),
        head_dim=st.sampled_from([2, 8]),
        block_size=st.sampled_from([1, 4, 16, 64]),
    ),
    spec=st.builds(
        AttentionSpec,
        scale=st.sampled_from([0.3, 1.5]),
        window=st.none() | st.integers(1, 50),
        softcap=st.none() | st.just(2.0),
    ),
    blocks=st.sampled_from([(256, 1024), (3, 8), (8, 5)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_matches_the_formula(shape: _Shape, spec: AttentionSpec, blocks: tuple[int, int], seed: int) -> None:
    case = _make_case(shape, seed)
    with (
        mock.patch.object(attention_module, "_QUERY_TILE", blocks[0]),
        mock.patch.object(attention_module, "_KEY_TILE", blocks[1]),
    ):
        ours = _attend(case, spec)
    torch.testing.assert_close(ours.double(), _formula(case, spec), atol=1e-5, rtol=1e-5)


def test_writes_keys_and_values_to_their_slots_only() -> None:
    case = _make_case(_Shape(((5, 3), (0, 2)), kv_heads=2, group=1, head_dim=4, block_size=4), seed=1)
    before = case.kv.keys.clone()
    _attend(case, AttentionSpec(1.0))
    slots = case.batch.kv_slots
    assert torch.equal(case.kv.keys.flatten(0, 1)[slots], case.key)
    assert torch.equal(case.kv.values.flatten(0, 1)[slots], case.value)
    others = torch.ones(before.shape[0] * before.shape[1], dtype=torch.bool)
    others[slots] = False
    unchanged = (case.kv.keys.flatten(0, 1)[others], before.flatten(0, 1)[others])
    assert torch.equal(torch.nan_to_num(unchanged[0]), torch.nan_to_num(unchanged[1]))


def test_no_key_before_the_window_is_read() -> None:
    window, before = 6, 30
    case = _make_case(_Shape(((before, 4),), kv_heads=1, group=2, head_dim=4, block_size=4), seed=2)
    spec = AttentionSpec(1.0, window)
    expected = _attend(case, spec)
    blocks = case.batch.sequences[0].blocks
    gone = torch.arange(before - window + 1)
    for tensor in (case.kv.keys, case.kv.values):
        tensor[blocks[gone // 4], gone % 4] = torch.nan
    assert torch.equal(_attend(case, spec), expected)


class _LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.numel = max(self.numel, result.numel())
        return result


def test_memory_does_not_grow_with_the_context() -> None:
    num_rows, heads = 300, 2
    case = _make_case(
        _Shape(((20_000, num_rows),), kv_heads=1, group=heads, head_dim=2, block_size=16), seed=3
    )
    with _LargestTensor() as largest:
        attention_module.attend_blocks(case.query, case.batch, case.kv, AttentionSpec(1.0))
    assert largest.numel <= heads * 256 * 1024


def test_batching_does_not_change_a_sequence() -> None:
    """Bit for bit: rows of different sequences are never computed together."""
    case = _make_case(_Shape(((9, 5), (20, 3)), kv_heads=2, group=2, head_dim=8, block_size=4), seed=5)
    spec = AttentionSpec(0.4)
    together = _attend(case, spec)
    rows = slice(5, 8)
    second = replace(case.batch.sequences[1], first_row=0)
    alone = replace(
        case,
        query=case.query[rows],
        key=case.key[rows],
        value=case.value[rows],
        batch=Batch.of(
            case.batch.token_ids[rows],
            case.batch.positions[rows],
            case.batch.kv_slots[rows],
            (second,),
            case.batch.block_size,
        ),
    )
    assert torch.equal(_attend(alone, spec), together[rows])
