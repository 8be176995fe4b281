"""The packed matrix product: correct, and independent of the other rows in the batch."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import gemm
from octavo.kernels.gemm import GemmArguments, PackedMatrix, multiply, read_rows
from octavo.kernels.library import Isa, KernelLibrary, KernelPool, Memory
from unit.kernels.instruction_sets import ISAS

OpenPool = Callable[..., KernelPool]
DTYPES = [torch.bfloat16, torch.float32]
ODD_SHAPES = [(1, 33, 17), (5, 64, 100), (17, 96, 576), (33, 31, 1), (48, 100, 64), (130, 40, 257)]


def matrices(library: KernelLibrary, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m * 7919 + n * 31 + k)
    x = torch.randn(m, k, generator=generator).to(dtype)
    w = torch.randn(n, k, generator=generator).to(dtype)
    return x, w, torch.randn(n, generator=generator)


def packed(library: KernelLibrary, w: torch.Tensor) -> PackedMatrix:
    n, k = w.shape
    matrix = PackedMatrix(library, n, k, "F32" if w.dtype == torch.float32 else "BF16")
    for start in range(0, len(w), 7):  # as while loading: pieces that do not match weight blocks
        matrix.write_rows(start, w[start : start + 7])
    return matrix


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
def test_product_is_within_the_error_bound(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    pool = open_pool(isa)
    x, w, bias = matrices(library, *shape, dtype)
    exact = x.double() @ w.double().T + bias.double()
    # The usual error bound of a sum of k rounded products.
    bound = (x.double().abs() @ w.double().abs().T + bias.abs()) * shape[2] * 2.0**-23 + 1e-6
    y = multiply(pool, x, packed(library, w), bias, torch.float32)
    assert torch.all((y.double() - exact).abs() <= bound)
    if dtype is torch.bfloat16:
        rounded = multiply(pool, x, packed(library, w), bias, torch.bfloat16)
        assert torch.equal(rounded, y.to(torch.bfloat16))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_rows_do_not_change_a_row(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, dtype: torch.dtype
) -> None:
    """Every row of every batch equals the row alone, bit for bit, on one thread and on two."""
    x, w, bias = matrices(library, 150, 72, 300, dtype)
    matrix = packed(library, w)
    alone = torch.cat([multiply(open_pool(isa), row[None], matrix, bias, torch.float32) for row in x])
    for num_threads in (1, 2):
        pool = open_pool(isa, num_threads)
        for m in (2, 7, 16, 17, 31, 32, 33, 64, 150):
            assert torch.equal(multiply(pool, x[:m], matrix, bias, torch.float32), alone[:m])
        assert torch.equal(multiply(pool, x[100:], matrix, bias, torch.float32), alone[100:])


# (m, n, k) around the boundaries of the AMX product: a panel of k is at most 576; a part of y is one block
# wide, or a rectangle of 384 x 384 if k is so large that x does not stay in the cache.
PANELS = [(130, 40, 576), (130, 40, 577), (49, 72, 1153), (513, 33, 96), (420, 420, 8192)]


@pytest.mark.parametrize("shape", PANELS, ids=str)
def test_panel_and_part_boundaries_do_not_change_results(
    library: KernelLibrary, open_pool: OpenPool, shape: tuple[int, int, int]
) -> None:
    """Sums that were stored to memory and reloaded equal those of a single row, which stay in registers."""
    x, w, bias = matrices(library, *shape, torch.bfloat16)
    matrix = packed(library, w)
    together = multiply(open_pool(library.best_isa, 2), x, matrix, bias, torch.float32)
    assert torch.equal(multiply(open_pool(library.best_isa, 1), x, matrix, bias, torch.float32), together)
    one_thread = open_pool(library.best_isa, 1)
    for row in {*range(0, len(x), 37), *range(len(x) - 3, len(x))}:
        alone = multiply(one_thread, x[row : row + 1], matrix, bias, torch.float32)
        assert torch.equal(alone[0], together[row]), row
    rounded = multiply(open_pool(library.best_isa, 2), x, matrix, bias, torch.bfloat16)
    assert torch.equal(rounded, together.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_of_rows_does_not_change_a_row(
    library: KernelLibrary, open_pool: OpenPool, dtype: torch.dtype
) -> None:
    x, w, _ = matrices(library, 131, 64, 800, dtype)
    matrix, pool = packed(library, w), open_pool(library.best_isa, 2)
    alone = torch.cat([multiply(pool, row[None], matrix, None, torch.float32) for row in x])
    for m in range(1, len(x) + 1):
        for out_dtype in {dtype, torch.float32}:
            assert torch.equal(multiply(pool, x[:m], matrix, None, out_dtype), alone[:m].to(out_dtype)), m


@pytest.mark.parametrize("m", [1, 16, 31, 100])
def test_alignment_of_x_does_not_change_results(library: KernelLibrary, open_pool: OpenPool, m: int) -> None:
    """Row strides of an odd, even or fractional number of cache lines; the AMX product copies some rows."""
    x, w, bias = matrices(library, m, 64, 640, torch.bfloat16)
    matrix, pool = packed(library, w), open_pool(library.best_isa, 2)
    expected = multiply(pool, x, matrix, bias, torch.float32)
    for stride, start in ((640, 0), (672, 0), (672, 1), (704, 0), (650, 0)):
        memory = torch.full((m * stride + start,), torch.nan, dtype=torch.bfloat16)
        there = memory.as_strided((m, 640), (stride, 1), start)
        there.copy_(x)
        assert torch.equal(multiply(pool, there, matrix, bias, torch.float32), expected), (stride, start)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_round_trip(library: KernelLibrary, open_pool: OpenPool, dtype: torch.dtype) -> None:
    _, w, _ = matrices(library, 1, 70, 45, dtype)
    ids = torch.tensor([69, 0, 33, 33, 16, *range(50)])
    matrix = packed(library, w)
    for count in (0, 1, 5, 55):
        assert torch.equal(read_rows(open_pool(Isa.PORTABLE), matrix, ids[:count]), w[ids[:count]])


def test_strided_rows_of_x_are_read_in_place(library: KernelLibrary, open_pool: OpenPool) -> None:
    x, w, _ = matrices(library, 9, 40, 64, torch.bfloat16)
    wide = torch.full((9, 100), torch.nan, dtype=torch.bfloat16)
    wide[:, :64] = x
    matrix, pool = packed(library, w), open_pool(library.best_isa)
    expected = multiply(pool, x, matrix, None, torch.bfloat16)
    assert torch.equal(multiply(pool, wide[:, :64], matrix, None, torch.bfloat16), expected)


def test_invalid_tensors_are_rejected(library: KernelLibrary, open_pool: OpenPool) -> None:
    x, w, bias = matrices(library, 3, 8, 16, torch.bfloat16)
    matrix, pool = packed(library, w), open_pool(library.best_isa)
    for bad_x, bad_bias in [
        (x.float(), None),
        (x[:, :15], None),
        (x[0], None),
        (x, bias[:7]),
        (x, bias.double()),
    ]:
        with pytest.raises(ValueError, match=r"x (is|has)|bias"):
            multiply(pool, bad_x, matrix, bad_bias, torch.bfloat16)
    for start, rows in [(7, w[:2]), (-1, w[:1]), (0, w[:, :3]), (0, w[0])]:
        with pytest.raises(ValueError, match=r"fit|size"):
            matrix.write_rows(start, rows)
    for ids in (torch.tensor([8]), torch.tensor([-1]), torch.tensor([1.0]), torch.arange(8)[::2]):
        with pytest.raises(ValueError, match=r"size|ids"):
            read_rows(pool, matrix, ids)
    assert torch.equal(read_rows(pool, matrix, torch.arange(8)), w)


def test_several_weights_fill_the_columns_of_one_result(library: KernelLibrary, open_pool: OpenPool) -> None:
    x, w, bias = matrices(library, 5, 100, 64, torch.bfloat16)
    whole = packed(library, w)
    first, second = packed(library, w[:37]), packed(library, w[37:])
    for isa in library.isas:
        pool = open_pool(isa)
        y = torch.full((5, 110), 7.0, dtype=torch.bfloat16)
        multiply(pool, x, second, bias[37:], torch.bfloat16, out=y[:, 37:100])
        multiply(pool, x, first, bias[:37], torch.bfloat16, out=y[:, :37])
        assert torch.equal(y[:, :100], multiply(pool, x, whole, bias, torch.bfloat16))
        assert torch.all(y[:, 100:] == 7.0)
    for out in (y[:, :36], y[:4, :37], y[:, :37].float(), y[:, :74:2]):
        with pytest.raises(ValueError, match="but the result is"):
            multiply(pool, x, first, None, torch.bfloat16, out=out)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": 7},
        {"out_dtype": 5},
        {"format": 1},
        {"format": 99},
        {"x": None},
        {"packed": None},
        {"y": None},
        {"m": 0},
        {"m": -1},
        {"n": 1 << 40},
        {"k": 0},
        {"x_stride": 15},
        {"y_stride": 7},
        {"x_stride": 1 << 50},
        {"packed": 8},
    ],
    ids=str,
)
def test_the_c_interface_rejects_invalid_arguments_and_writes_nothing(
    library: KernelLibrary, open_pool: OpenPool, change: dict[str, int | None]
) -> None:
    x, w, _ = matrices(library, 3, 8, 16, torch.bfloat16)
    matrix, pool = packed(library, w), open_pool(library.best_isa)
    y = torch.full((3, 8), 7.0)
    arguments = GemmArguments(
        0, 1, 0, 0, x.data_ptr(), 16, matrix.address, None, y.data_ptr(), 8, len(x), 8, 16
    )
    for name, value in change.items():
        setattr(arguments, name, (matrix.address or 0) + 8 if name == "packed" and value else value)
    with pytest.raises(ValueError, match="native kernel"):
        library.check(library.functions.ov_gemm(pool.handle, ctypes.byref(arguments)))
    assert torch.all(y == 7.0)


def test_nothing_is_written_outside_y(library: KernelLibrary, open_pool: OpenPool) -> None:
    """y is in the middle of a larger array, whose other elements keep their values."""
    for isa in library.isas:
        pool = open_pool(isa)
        x, w, _ = matrices(library, 19, 45, 70, torch.bfloat16)
        matrix = packed(library, w)
        y = torch.full((21, 60), 7.0, dtype=torch.bfloat16)
        arguments = GemmArguments(
            0, 0, 0, 0, x.data_ptr(), 70, matrix.address, None, y[1:, 5:].data_ptr(), 60, 19, 45, 70
        )
        library.check(library.functions.ov_gemm(pool.handle, ctypes.byref(arguments)))
        assert torch.equal(y[1:20, 5:50], multiply(pool, x, matrix, None, torch.bfloat16))
        y[1:20, 5:50] = 7.0
        assert torch.all(y == 7.0)


def test_invalid_pools_and_memory_sizes_are_rejected(library: KernelLibrary) -> None:
    for num_threads, isa in [(0, Isa.PORTABLE), (5000, Isa.PORTABLE), (1, 9)]:
        with pytest.raises(ValueError, match="native kernel"):
            KernelPool(library, num_threads, isa)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        Memory(library, 1 << 62)


def test_an_empty_product_is_empty(library: KernelLibrary, open_pool: OpenPool) -> None:
    _, w, _ = matrices(library, 1, 8, 16, torch.bfloat16)
    y = multiply(
        open_pool(Isa.PORTABLE), torch.empty(0, 16).bfloat16(), packed(library, w), None, torch.bfloat16
    )
    assert y.shape == (0, 8)
    assert gemm.DTYPES[y.dtype] == 0
