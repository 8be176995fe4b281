"""Native paged attention compared with the torch path in float32, and with itself bit for bit."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch

from octavo.kernels.attention import (
    AttentionArguments,
    KVBlocks,
    KVWriteArguments,
    SequenceTable,
    attend,
    write_kv,
)
from octavo.kernels.library import Isa, KernelLibrary, KernelPool
from octavo.ops import AttentionSpec, Batch, BatchSequence, LayerKV
from octavo.ops.torch_attention import attend_blocks
from unit.kernels.instruction_sets import ISAS

OpenPool = Callable[..., KernelPool]
BF16, F32 = torch.bfloat16, torch.float32
KERNELS = [(isa, dtype) for isa in ISAS for dtype in (BF16, F32) if (isa, dtype) != (Isa.AMX, F32)]

every_kernel = pytest.mark.parametrize(
    ("isa", "dtype"), KERNELS, ids=[f"{isa.name}-{str(dtype)[6:]}" for isa, dtype in KERNELS]
)


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    block_size: int = 32

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@dataclass(frozen=True)
class Sequences:
    """Sequences with a query, a key and a value for every token: [context, heads, head_dim]."""

    shape: Shape
    query: list[torch.Tensor]
    key: list[torch.Tensor]
    value: list[torch.Tensor]
    blocks: list[torch.Tensor]
    num_blocks: int

    @property
    def contexts(self) -> list[int]:
        return [len(query) for query in self.query]


def make_sequences(shape: Shape, dtype: torch.dtype, contexts: Sequence[int]) -> Sequences:
    generator = torch.Generator().manual_seed(sum(contexts) + shape.head_dim)

    def random(heads: int) -> list[torch.Tensor]:
        return [
            torch.randn(context, heads, shape.head_dim, generator=generator).to(dtype) for context in contexts
        ]

    counts = [-(-context // shape.block_size) for context in contexts]
    ids = torch.randperm(sum(counts) + 2, generator=generator)
    blocks = list(ids[: sum(counts)].split(counts))
    query = [rows * 2 for rows in random(shape.heads)]
    return Sequences(shape, query, random(shape.kv_heads), random(shape.kv_heads), blocks, len(ids))


def fill(memory: KVBlocks, byte: int) -> None:
    """Fill keys and values with a byte; 0xff makes every element NaN."""
    for part in (memory.keys, memory.values):
        assert part.address is not None
        ctypes.memset(part.address, byte, part.num_bytes)


def new_blocks(pool: KernelPool, sequences: Sequences, dtype: torch.dtype) -> KVBlocks:
    """Return blocks in which every element is NaN."""
    shape = sequences.shape
    kv = KVBlocks(
        pool.library,
        num_blocks=sequences.num_blocks,
        block_size=shape.block_size,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
    )
    fill(kv, 0xFF)
    return kv


def slots_of(sequences: Sequences, index: int, start: int, end: int) -> torch.Tensor:
    positions = torch.arange(start, end)
    size = sequences.shape.block_size
    return sequences.blocks[index][positions // size] * size + positions % size


# A step computes tokens [start, end) of some sequences: (index, start, end).
Step = Sequence[tuple[int, int, int]]


def run_step(
    pool: KernelPool, kv: KVBlocks, sequences: Sequences, step: Step, spec: AttentionSpec
) -> list[torch.Tensor]:
    def rows(of: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([of[index][start:end] for index, start, end in step])

    slots = torch.cat([slots_of(sequences, *part) for part in step])
    write_kv(pool, kv, rows(sequences.key), rows(sequences.value), slots)
    counts = [end - start for _, start, end in step]
    table = SequenceTable.from_lists(
        [sum(counts[:i]) for i in range(len(counts))],
        counts,
        [end for _, _, end in step],
        [sequences.blocks[index][: -(-end // kv.block_size)] for index, _, end in step],
    )
    query = rows(sequences.query)
    out = attend(pool, kv, query, table, scale=spec.scale, window=spec.window, softcap=spec.softcap)
    return list(out.split(counts))


def run_chunked(
    pool: KernelPool, dtype: torch.dtype, sequences: Sequences, spec: AttentionSpec, chunk: int
) -> list[torch.Tensor]:
    """Run all sequences together, `chunk` tokens of each per step."""
    kv = new_blocks(pool, sequences, dtype)
    pieces: list[list[torch.Tensor]] = [[] for _ in sequences.contexts]
    for start in range(0, max(sequences.contexts), chunk):
        step = [
            (i, start, min(start + chunk, context))
            for i, context in enumerate(sequences.contexts)
            if start < context
        ]
        for (i, _, _), piece in zip(step, run_step(pool, kv, sequences, step, spec), strict=True):
            pieces[i].append(piece)
    return [torch.cat(parts) for parts in pieces]


def run_whole(
    pool: KernelPool, dtype: torch.dtype, sequences: Sequences, spec: AttentionSpec
) -> list[torch.Tensor]:
    return run_chunked(pool, dtype, sequences, spec, max(sequences.contexts))


def oracle(sequences: Sequences, spec: AttentionSpec) -> list[torch.Tensor]:
    """Return the results of the torch path in float32, one sequence at a time."""
    shape, results = sequences.shape, []
    for i, context in enumerate(sequences.contexts):
        layout = (sequences.num_blocks, shape.block_size, shape.kv_heads, shape.head_dim)
        kv = LayerKV(torch.full(layout, torch.nan), torch.full(layout, torch.nan))
        slots = slots_of(sequences, i, 0, context)
        kv.keys.flatten(0, 1)[slots] = sequences.key[i].float()
        kv.values.flatten(0, 1)[slots] = sequences.value[i].float()
        positions = torch.arange(context)
        part = BatchSequence(0, context, context, sequences.blocks[i])
        batch = Batch.of(positions, positions, slots, (part,), shape.block_size)
        results.append(attend_blocks(sequences.query[i].float(), batch, kv, spec))
    return results


def spec_of(shape: Shape, window: int | None = None, softcap: float | None = None) -> AttentionSpec:
    return AttentionSpec(scale=shape.head_dim**-0.5, window=window, softcap=softcap)


def assert_close(results: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype) -> None:
    # bf16: output and, on AMX, weights are rounded to 8 bits.
    tolerance = 1e-5 if dtype == F32 else 1.5e-2
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.float(), wanted, rtol=tolerance, atol=tolerance)


def assert_same(results: list[torch.Tensor], expected: list[torch.Tensor], what: str) -> None:
    for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        bits = torch.int16 if result.dtype == BF16 else torch.int32
        different = (result.view(bits) != wanted.view(bits)).nonzero()
        first = different[0].tolist() if len(different) else []
        assert not len(different), f"{what}: sequence {i} differs first at [token, head, dim] {first}"


SHAPES = [
    Shape(kv_heads=1, group=1, head_dim=64),
    Shape(kv_heads=3, group=3, head_dim=64, block_size=64),
    Shape(kv_heads=2, group=7, head_dim=80),
    Shape(kv_heads=1, group=8, head_dim=96),
    Shape(kv_heads=2, group=2, head_dim=128, block_size=96),
    Shape(kv_heads=1, group=20, head_dim=256),
    Shape(kv_heads=2, group=1, head_dim=16),
]


@every_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_torch(open_pool: OpenPool, isa: Isa, dtype: torch.dtype, shape: Shape) -> None:
    sequences = make_sequences(shape, dtype, [1, 33, 70])
    spec = spec_of(shape)
    assert_close(run_whole(open_pool(isa), dtype, sequences, spec), oracle(sequences, spec), dtype)


@every_kernel
@pytest.mark.parametrize(("window", "softcap"), [(1, None), (40, None), (530, 20.0), (None, None)])
def test_window_and_softcap(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, window: int | None, softcap: float | None
) -> None:
    shape = Shape(kv_heads=1, group=2, head_dim=32)
    sequences = make_sequences(shape, dtype, [60, 560] if isa == Isa.PORTABLE else [60, 1100])
    spec = spec_of(shape, window, softcap)
    assert_close(run_whole(open_pool(isa), dtype, sequences, spec), oracle(sequences, spec), dtype)


@every_kernel
def test_tiny_attention_weights_are_not_slower(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, figure: Callable[[str], None]
) -> None:
    """Most weights are 0 or would be subnormal; subnormal arithmetic is a hundred times slower."""
    shape, pool = Shape(kv_heads=1, group=1, head_dim=16), open_pool(isa)
    sequences = make_sequences(shape, dtype, [300])

    def seconds(factor: float) -> float:
        scaled = replace(sequences, query=[rows * factor for rows in sequences.query])
        before = pool.times()
        run_whole(pool, dtype, scaled, spec_of(shape))
        return (pool.times() - before).attention.seconds

    # Alternate and take the best of each: other load on the machine only ever adds time.
    rounds = [(seconds(40.0), seconds(0.1)) for _ in range(20)]
    ratio = min(light for light, _ in rounds) / min(plain for _, plain in rounds)
    figure(f"attention, {isa.name} {dtype}: light tokens take {ratio:.2f} times as long")
    assert ratio < 5  # it was 10 with subnormal weights


# Longer than a split, so that every kind of boundary is crossed.
LONG = (1, 37, 541)


def long_sequences(isa: Isa, dtype: torch.dtype, contexts: Sequence[int] = LONG) -> Sequences:
    shape = Shape(kv_heads=1, group=1, head_dim=16) if isa == Isa.PORTABLE else Shape(kv_heads=2, group=3)
    return make_sequences(shape, dtype, contexts)


@every_kernel
@pytest.mark.parametrize(("chunk", "window"), [(1, None), (7, 70), (16, None), (33, 520), (33, None)])
def test_chunk_size_does_not_change_results(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, chunk: int, window: int | None
) -> None:
    sequences = long_sequences(isa, dtype)
    spec = spec_of(sequences.shape, window, softcap=None if window is None else 30.0)
    whole = run_whole(open_pool(isa), dtype, sequences, spec)
    assert_same(run_chunked(open_pool(isa), dtype, sequences, spec, chunk), whole, f"chunks of {chunk}")


@every_kernel
@pytest.mark.parametrize("group", [1, 3, 7, 8])
def test_decode_equals_prefill_for_every_group_size(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, group: int
) -> None:
    shape = Shape(kv_heads=1, group=group, head_dim=80)
    sequences = make_sequences(shape, dtype, [40, 77])
    spec = spec_of(shape, window=24)
    whole = run_whole(open_pool(isa), dtype, sequences, spec)
    assert_same(run_chunked(open_pool(isa), dtype, sequences, spec, 1), whole, "token by token")


@every_kernel
@pytest.mark.parametrize("num_threads", [1, 2])
def test_shared_blocks_do_not_change_results(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, num_threads: int
) -> None:
    """Rows of several sequences share a tile if they read the same blocks."""
    own = long_sequences(isa, dtype, [1030, 1100, 513, 1536, 1024, 700, 1055])
    blocks, spec, pool = list(own.blocks), spec_of(own.shape), open_pool(isa, num_threads)
    for index, other, length in ((1, 0, 1024), (2, 0, 512), (3, 0, 1024), (4, 0, 1024), (6, 5, 512)):
        for rows in (own.key, own.value):
            rows[index][:length] = rows[other][:length]
        num_blocks = length // own.shape.block_size
        blocks[index] = torch.cat((blocks[other][:num_blocks], blocks[index][num_blocks:]))
    decode = [(i, context - 1, context) for i, context in enumerate(own.contexts)]
    mixed = [*decode[:2], (2, 490, 513), *decode[3:]]
    results = []
    for sequences in (own, replace(own, blocks=blocks)):
        kv = new_blocks(pool, sequences, dtype)
        for i, context in enumerate(sequences.contexts):
            run_step(pool, kv, sequences, [(i, 0, context)], spec)
        results.append([run_step(pool, kv, sequences, step, spec) for step in (decode, mixed)])
    for alone, shared in zip(*results, strict=True):
        assert_same(shared, alone, "shared blocks")


@every_kernel
def test_batch_and_threads_do_not_change_results(open_pool: OpenPool, isa: Isa, dtype: torch.dtype) -> None:
    sequences = long_sequences(isa, dtype, [5, 540, 1100])
    spec = spec_of(sequences.shape)
    together = run_whole(open_pool(isa, 2), dtype, sequences, spec)
    assert_same(run_whole(open_pool(isa, 1), dtype, sequences, spec), together, "one thread")
    for i, context in enumerate(sequences.contexts):
        # A sequence alone has fewer tasks, so they are divided into splits.
        kv = new_blocks(open_pool(isa), sequences, dtype)
        alone = run_step(open_pool(isa), kv, sequences, [(i, 0, context)], spec)
        assert_same(alone, [together[i]], f"sequence {i} alone")
        last = run_step(open_pool(isa, 1), kv, sequences, [(i, context - 1, context)], spec)
        assert_same(last, [together[i][-1:]], f"the last token of sequence {i}, again")


@every_kernel
def test_unwritten_rows_do_not_change_results(open_pool: OpenPool, isa: Isa, dtype: torch.dtype) -> None:
    """Compare NaN-filled blocks (the default here) with blocks of zeros and of leftover values."""
    pool, sequences = open_pool(isa), long_sequences(isa, dtype)
    spec = spec_of(sequences.shape)
    expected = run_whole(pool, dtype, sequences, spec)
    assert all(result.isfinite().all() for result in expected)
    for byte in (0x00, 0x41, 0x7F):
        kv = new_blocks(pool, sequences, dtype)
        fill(kv, byte)
        step = [(i, 0, context) for i, context in enumerate(sequences.contexts)]
        assert_same(run_step(pool, kv, sequences, step, spec), expected, f"blocks of {byte:#x}")


@every_kernel
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_nan_affects_later_rows_only(open_pool: OpenPool, isa: Isa, dtype: torch.dtype, bad: float) -> None:
    pool = open_pool(isa)
    sequences = make_sequences(Shape(kv_heads=1, group=3, head_dim=32), dtype, [90])
    spec = spec_of(sequences.shape, window=20)
    expected = run_whole(pool, dtype, sequences, spec)[0]
    sequences.value[0][50, 0, 3] = bad
    result = run_whole(pool, dtype, sequences, spec)[0]
    assert_same([result[:50]], [expected[:50]], "before")
    assert_same([result[70:]], [expected[70:]], "out of the window")
    assert not result[50:70, :, 3].isfinite().any()


@every_kernel
def test_strided_rows(open_pool: OpenPool, isa: Isa, dtype: torch.dtype) -> None:
    """Query, key and value are views of one fused projection, as in a model."""
    pool, shape = open_pool(isa), Shape(kv_heads=2, group=2, head_dim=32)
    sequences = make_sequences(shape, dtype, [45])
    expected = run_whole(pool, dtype, sequences, spec_of(shape))[0]
    fused = torch.cat([sequences.query[0], sequences.key[0], sequences.value[0]], dim=1)
    query, key, value = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    kv = new_blocks(pool, sequences, dtype)
    write_kv(pool, kv, key, value, slots_of(sequences, 0, 0, 45))
    table = SequenceTable.from_lists([0], [45], [45], sequences.blocks)
    assert_same([attend(pool, kv, query, table, scale=32**-0.5)], [expected], "fused")
    head_major = query.transpose(0, 1).contiguous().transpose(0, 1)
    assert_same([attend(pool, kv, head_major, table, scale=32**-0.5)], [expected], "head by head")


# -- Argument checks --------------------------------------------------------------------------------------


@pytest.fixture
def pool(open_pool: OpenPool) -> KernelPool:
    return open_pool(Isa.PORTABLE)


@pytest.fixture
def small(pool: KernelPool) -> tuple[Sequences, KVBlocks]:
    sequences = make_sequences(Shape(kv_heads=2, group=2, head_dim=16), F32, [40])
    return sequences, new_blocks(pool, sequences, F32)


def test_block_sizes(library: KernelLibrary) -> None:
    def size(dtype: torch.dtype, block_size: int, head_dim: int) -> int:
        return KVBlocks.num_bytes(library, block_size=block_size, kv_heads=3, head_dim=head_dim, dtype=dtype)

    assert size(F32, 32, 80) == 2 * 3 * 32 * 80 * 4
    assert size(BF16, 64, 80) == 2 * 3 * 64 * 96 * 2  # padded to 32
    for block_size, head_dim in ((16, 64), (0, 64), (-32, 64), (48, 64), (32, 20), (32, 0), (32, 272)):
        assert size(BF16, block_size, head_dim) == 0
    with pytest.raises(ValueError, match="multiple of 32"):
        KVBlocks(library, num_blocks=1, block_size=16, kv_heads=1, head_dim=64, dtype=BF16)
    assert library.functions.ov_kv_bytes(0, 2**30, 2**30, 2**30, 256) == 0


@pytest.mark.parametrize("slot", [-1, 4 * 32, 2**62])
def test_a_slot_outside_the_blocks_is_rejected(
    pool: KernelPool, small: tuple[Sequences, KVBlocks], slot: int
) -> None:
    sequences, kv = small
    assert sequences.num_blocks == 4
    slots = torch.tensor([0, slot])
    with pytest.raises(ValueError, match="native kernel"):
        write_kv(pool, kv, sequences.key[0][:2], sequences.value[0][:2], slots)
    for part in (kv.keys, kv.values):
        assert part.address is not None
        assert ctypes.string_at(part.address, part.num_bytes) == b"\xff" * part.num_bytes


def test_invalid_tensors_are_rejected(pool: KernelPool, small: tuple[Sequences, KVBlocks]) -> None:
    sequences, kv = small
    key, slots = sequences.key[0][:2], torch.tensor([0, 1])
    table = SequenceTable.from_lists([0], [2], [2], [torch.tensor([0])])
    query = sequences.query[0][:2]
    for wrong in (key.bfloat16(), key[:, :1], key[..., :8], key[0], key.to("meta")):
        with pytest.raises(ValueError, match="keys"):
            write_kv(pool, kv, wrong, key, slots)
        with pytest.raises(ValueError, match="values"):
            write_kv(pool, kv, key, wrong, slots)
    with pytest.raises(ValueError, match="slots"):
        write_kv(pool, kv, key, key, torch.tensor([0]))
    with pytest.raises(ValueError, match="slots"):
        write_kv(pool, kv, key, key, slots.int())
    for wrong in (query.bfloat16(), query[:, :3], query[..., :8], query[0]):
        with pytest.raises(ValueError, match="queries"):
            attend(pool, kv, wrong, table, scale=1.0)
    with pytest.raises(ValueError, match="window"):
        attend(pool, kv, query, table, scale=1.0, window=0)
    write_kv(pool, kv, key[:0], key[:0], slots[:0])
    assert attend(pool, kv, query[:0], table, scale=1.0).shape == query[:0].shape


def test_invalid_block_tables_are_rejected() -> None:
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="offsets"):
        SequenceTable(one, one, one, torch.tensor([0, 2]), one)
    with pytest.raises(ValueError, match="one element"):
        SequenceTable(one, one, one, one, one)
    with pytest.raises(ValueError, match="int64"):
        SequenceTable(one, one, one.int(), torch.tensor([0, 1]), one)
    with pytest.raises(ValueError, match="CPU"):
        SequenceTable(one, one, one, torch.tensor([0, 1]), one.to("meta"))


BAD_SIZES = (
    *(("heads", value) for value in (0, 3, -4)),
    *(("window", value) for value in (-1,)),
    *(("scale", value) for value in (0.0, -1.0, torch.nan, torch.inf)),
    *(("softcap", value) for value in (-1.0, torch.nan, torch.inf)),
    *(("block_size", value) for value in (0, 31, 2**40)),
    *(("head_dim", value) for value in (0, 17, 272)),
    ("num_blocks", 0),
    ("num_rows", 0),
    ("num_sequences", 0),
    ("dtype", 5),
)


def test_invalid_arguments_write_nothing(pool: KernelPool, small: tuple[Sequences, KVBlocks]) -> None:
    sequences, kv = small
    query = sequences.query[0]
    out = torch.full_like(query, 7.0)
    good = SequenceTable.from_lists([0], [40], [40], sequences.blocks)

    def status(table: SequenceTable = good, changes: Mapping[str, object] = MappingProxyType({})) -> int:
        arguments = AttentionArguments(
            kv.struct, query.data_ptr(), 64, 16, out.data_ptr(), 64, 16, 40, 4, len(table.first_rows)
        )
        arguments.first_rows = table.first_rows.data_ptr()
        arguments.row_counts = table.row_counts.data_ptr()
        arguments.contexts = table.contexts.data_ptr()
        arguments.block_offsets = table.block_offsets.data_ptr()
        arguments.blocks = table.blocks.data_ptr()
        arguments.scale = 1.0
        for name, value in changes.items():
            owner = arguments.kv if hasattr(arguments.kv, name) else arguments
            setattr(owner, name, value)
        return int(pool.library.functions.ov_attention(pool.handle, ctypes.byref(arguments)))

    blocks = sequences.blocks[0]
    for first_row, num_rows, context, ids in (
        (-1, 40, 40, blocks),
        (1, 40, 40, blocks),
        (0, 41, 40, blocks),
        (0, 0, 40, blocks),
        (0, 40, 65, blocks),
        (0, 40, 40, blocks[:1]),
        (0, 40, 40, torch.tensor([0, 4])),
        (0, 40, 40, torch.tensor([-1, 0])),
        (0, 40, 2**40, blocks),
    ):
        assert status(SequenceTable.from_lists([first_row], [num_rows], [context], [ids])) == 2
    for name in ("q", "out", "keys", "values", "first_rows", "row_counts", "contexts", "blocks"):
        assert status(changes={name: None}) == 1
    assert status(changes={"keys": kv.struct.keys + 4}) == 4
    for name, value in BAD_SIZES:
        assert status(changes={name: value}) == 2, (name, value)
    strides = (("q_stride", 63), ("out_stride", -1), ("q_head_stride", 15), ("out_head_stride", 2**41))
    for name, value in strides:
        assert status(changes={name: value}) == 3, (name, value)
    assert (out == 7.0).all()

    functions, write = pool.library.functions, KVWriteArguments(kv.struct)
    assert functions.ov_attention(None, None) == 1
    assert functions.ov_kv_write(pool.handle, ctypes.byref(write)) == 1
