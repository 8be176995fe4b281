"""Quantised weights give the bits of the weights widened to bf16, in every format on every ISA."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from octavo.kernels.gemm import ROW_GROUP, PackedMatrix, multiply, read_rows
from octavo.kernels.library import Format, Isa, KernelLibrary, KernelPool
from octavo.weight_format import FORMATS, BadBlocks
from unit.kernels.blocks import Bytes, damaged, exhaustive_blocks, random_blocks, widened
from unit.kernels.instruction_sets import ISAS

OpenPool = Callable[..., KernelPool]
NAMES = tuple(FORMATS)
# Rows: one, a partial tile, a tile and one more, two tiles, three, four, and enough to expand in panels.
ROWS = (1, 5, 16, 17, 32, 33, 48, 49, 64, 65, 130)


def pack(library: KernelLibrary, name: str, blocks: Bytes, k: int) -> PackedMatrix:
    matrix = PackedMatrix(library, len(blocks), k, name)
    for start in range(0, len(blocks), 7):  # as while loading: pieces that do not match groups of rows
        matrix.write_blocks(start, torch.from_numpy(blocks[start : start + 7]))
    return matrix


def pack_bf16(library: KernelLibrary, rows: torch.Tensor) -> PackedMatrix:
    matrix = PackedMatrix(library, rows.shape[0], rows.shape[1], "BF16")
    matrix.write_rows(0, rows)
    return matrix


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16 if values.dtype == torch.bfloat16 else torch.int32)


def normal(m: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def all_rows(pool: KernelPool, matrix: PackedMatrix) -> torch.Tensor:
    return read_rows(pool, matrix, torch.arange(matrix.n))


@pytest.mark.parametrize("name", NAMES)
def test_every_code_and_scale_expands_as_in_gguf(
    library: KernelLibrary, open_pool: OpenPool, name: str
) -> None:
    """Embedding rows cover every value of every byte, every exponent of a scale and both zeros."""
    k = 1024
    n = -(-256 * FORMATS[name].block_k // k)
    blocks = exhaustive_blocks(name, n, k)
    pool = open_pool(Isa.PORTABLE)
    assert torch.equal(bits(all_rows(pool, pack(library, name, blocks, k))), bits(widened(name, blocks)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_products_match_widened_weights_bit_for_bit(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, name: str
) -> None:
    """On one thread and on two; the last block of columns is partial."""
    n, k = 72, 768
    blocks = random_blocks(name, n, k)
    matrix, plain = pack(library, name, blocks, k), pack_bf16(library, widened(name, blocks))
    bias = torch.randn(n, generator=torch.Generator().manual_seed(1))
    x = normal(max(ROWS), k)
    for m in ROWS if isa != Isa.PORTABLE else (1, 17):
        for num_threads in (1, 2):
            pool = open_pool(isa, num_threads)
            for out in (torch.float32, torch.bfloat16):
                expected = multiply(pool, x[:m], plain, bias, out)
                assert torch.equal(bits(multiply(pool, x[:m], matrix, bias, out)), bits(expected)), m


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_every_code_and_scale_in_a_product(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, name: str
) -> None:
    """A unit vector selects one weight per column, which checks the expansion value by value."""
    k = FORMATS[name].block_k * 2
    n = 128
    blocks = exhaustive_blocks(name, n, k)
    matrix, expected = pack(library, name, blocks, k), widened(name, blocks)
    picked = torch.arange(0, k, 1 if isa != Isa.PORTABLE else 5)
    x = torch.nn.functional.one_hot(picked, k).to(torch.bfloat16)
    y = multiply(open_pool(isa), x, matrix, None, torch.float32)
    values = expected.T[picked].float()
    values[values.abs() < 2.0**-126] = 0.0  # products treat subnormal numbers as zero
    # Sums start at +0, so they are never -0.
    assert torch.equal(bits(y), bits(values.contiguous() + 0.0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_weights_with_small_k(library: KernelLibrary, open_pool: OpenPool, isa: Isa, name: str) -> None:
    """Weights expanded ahead belong to the next block of columns, or lie beyond the last one."""
    n = 100
    for k in (FORMATS[name].block_k * count for count in (1, 2, 3, 4)):
        blocks = random_blocks(name, n, k)
        matrix, plain = pack(library, name, blocks, k), pack_bf16(library, widened(name, blocks))
        for m in (1, 3, 20, 40, 70):
            expected = multiply(open_pool(isa), normal(m, k), plain, None, torch.float32)
            result = multiply(open_pool(isa), normal(m, k), matrix, None, torch.float32)
            assert torch.equal(bits(result), bits(expected)), (m, k)


# (m, n, k) around the boundaries of the product's panels of k and its parts of y.
PANELS = [(65, 40, 768), (70, 96, 3072), (800, 33, 256), (300, 420, 8192)]


@pytest.mark.parametrize("shape", PANELS, ids=str)
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "INT4_128"])
def test_panel_and_part_boundaries_do_not_change_results(
    library: KernelLibrary, open_pool: OpenPool, name: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    blocks = random_blocks(name, n, k)
    pool = open_pool(library.best_isa, 2)
    x = normal(m, k)
    expected = multiply(pool, x, pack_bf16(library, widened(name, blocks)), None, torch.float32)
    assert torch.equal(
        bits(multiply(pool, x, pack(library, name, blocks, k), None, torch.float32)), bits(expected)
    )


@pytest.mark.parametrize("name", NAMES)
def test_non_finite_scales_are_rejected(library: KernelLibrary, name: str) -> None:
    k = FORMATS[name].block_k * 2
    blocks = random_blocks(name, 5, k)
    for copy in damaged(name, blocks, row=3):
        matrix = PackedMatrix(library, 5, k, name)
        matrix.write_blocks(0, torch.from_numpy(copy[:3]))
        with pytest.raises(BadBlocks):
            matrix.write_blocks(3, torch.from_numpy(copy[3:]))


@pytest.mark.parametrize("name", NAMES)
def test_rows_can_be_rewritten_and_written_by_two_threads(
    library: KernelLibrary, open_pool: OpenPool, name: str
) -> None:
    n, k = 4 * ROW_GROUP, 256
    blocks = random_blocks(name, n, k)
    matrix = pack(library, name, random_blocks(name, n, k, seed=1), k)
    with ThreadPoolExecutor(2) as pool:
        starts = range(0, n, ROW_GROUP)
        list(pool.map(lambda i: matrix.write_blocks(i, torch.from_numpy(blocks[i : i + ROW_GROUP])), starts))
    assert torch.equal(bits(all_rows(open_pool(Isa.PORTABLE), matrix)), bits(widened(name, blocks)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_arbitrary_bytes_are_rejected_or_multiplied(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, name: str
) -> None:
    """Nothing is read or written out of bounds, whatever a file contains; sanitizers run this test too."""
    k = FORMATS[name].block_k * 3
    rng = np.random.default_rng(7)
    for attempt in range(8):
        n = int(rng.integers(1, 40))
        rows = rng.integers(0, 256, (n, FORMATS[name].row_bytes(k)), dtype=np.uint8)
        matrix = PackedMatrix(library, n, k, name)
        try:
            matrix.write_blocks(0, torch.from_numpy(rows))
        except BadBlocks:
            continue
        assert multiply(open_pool(isa), normal(attempt * 9 + 1, k), matrix, None, torch.float32).shape[1] == n


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_not_whole_weight_blocks_have_no_packed_form(library: KernelLibrary, name: str) -> None:
    block_k = FORMATS[name].block_k
    for k in (1, block_k - 1, block_k + 1, 0, -block_k):
        assert library.functions.ov_packed_bytes(Format[name], 32, k) == 0
    assert library.functions.ov_packed_bytes(len(Format), 32, 1024) == 0


@pytest.mark.parametrize("name", NAMES)
def test_packed_weights_use_little_more_memory_than_the_file(library: KernelLibrary, name: str) -> None:
    """A large weight takes at most a ninth more, for headers of whole cache lines."""
    n, k = 4096, 4096
    packed, stored = library.functions.ov_packed_bytes(Format[name], n, k), n * FORMATS[name].row_bytes(k)
    assert stored <= packed <= stored * 10 / 9
