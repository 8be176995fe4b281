"""The packed matrix product: right, and the same for a row whatever stands beside it."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import gemm
from octavo.kernels.gemm import GemmArguments, PackedMatrix, multiply, read_rows
from octavo.kernels.library import Engine, Isa, KernelLibrary, Memory
from unit.kernels.instruction_sets import ISAS

OpenEngine = Callable[..., Engine]
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
    for start in range(0, len(w), 7):  # as they stream in: in pieces that fit no block
        matrix.write_rows(start, w[start : start + 7])
    return matrix


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
def test_it_is_the_product(
    library: KernelLibrary, open_engine: OpenEngine, isa: Isa, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    engine = open_engine(isa)
    x, w, bias = matrices(library, *shape, dtype)
    exact = x.double() @ w.double().T + bias.double()
    # A sum of k products, each rounded: the usual bound on its error.
    bound = (x.double().abs() @ w.double().abs().T + bias.abs()) * shape[2] * 2.0**-23 + 1e-6
    y = multiply(engine, x, packed(library, w), bias, torch.float32)
    assert torch.all((y.double() - exact).abs() <= bound)
    if dtype is torch.bfloat16:
        rounded = multiply(engine, x, packed(library, w), bias, torch.bfloat16)
        assert torch.equal(rounded, y.to(torch.bfloat16))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_know_its_neighbours(
    library: KernelLibrary, open_engine: OpenEngine, isa: Isa, dtype: torch.dtype
) -> None:
    """Every row of every batch equals the row alone, bit for bit, on one thread and on two."""
    x, w, bias = matrices(library, 150, 72, 300, dtype)
    matrix = packed(library, w)
    alone = torch.cat([multiply(open_engine(isa), row[None], matrix, bias, torch.float32) for row in x])
    for num_threads in (1, 2):
        engine = open_engine(isa, num_threads)
        for m in (2, 7, 16, 17, 31, 32, 33, 64, 150):
            assert torch.equal(multiply(engine, x[:m], matrix, bias, torch.float32), alone[:m])
        assert torch.equal(multiply(engine, x[100:], matrix, bias, torch.float32), alone[100:])


# (m, n, k) around the borders of the AMX product: a panel of k is at most 576, a part of y one block wide or
# a rectangle of 384 x 384, which it is where k is so large that x does not stay in the cache.
PANELS = [(130, 40, 576), (130, 40, 577), (49, 72, 1153), (513, 33, 96), (420, 420, 8192)]


@pytest.mark.parametrize("shape", PANELS, ids=str)
def test_panels_and_parts_leave_no_trace(
    library: KernelLibrary, open_engine: OpenEngine, shape: tuple[int, int, int]
) -> None:
    """Sums that went to memory and came back are those of a row alone, which were never away."""
    x, w, bias = matrices(library, *shape, torch.bfloat16)
    matrix = packed(library, w)
    together = multiply(open_engine(library.best_isa, 2), x, matrix, bias, torch.float32)
    assert torch.equal(multiply(open_engine(library.best_isa, 1), x, matrix, bias, torch.float32), together)
    one_thread = open_engine(library.best_isa, 1)
    for row in {*range(0, len(x), 37), *range(len(x) - 3, len(x))}:
        alone = multiply(one_thread, x[row : row + 1], matrix, bias, torch.float32)
        assert torch.equal(alone[0], together[row]), row
    rounded = multiply(open_engine(library.best_isa, 2), x, matrix, bias, torch.bfloat16)
    assert torch.equal(rounded, together.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_rows_gives_the_same_rows(
    library: KernelLibrary, open_engine: OpenEngine, dtype: torch.dtype
) -> None:
    x, w, _ = matrices(library, 131, 64, 800, dtype)
    matrix, engine = packed(library, w), open_engine(library.best_isa, 2)
    alone = torch.cat([multiply(engine, row[None], matrix, None, torch.float32) for row in x])
    for m in range(1, len(x) + 1):
        for out_dtype in {dtype, torch.float32}:
            assert torch.equal(multiply(engine, x[:m], matrix, None, out_dtype), alone[:m].to(out_dtype)), m


@pytest.mark.parametrize("m", [1, 16, 31, 100])
def test_where_x_lies_does_not_show(library: KernelLibrary, open_engine: OpenEngine, m: int) -> None:
    """Rows an odd or even number of cache lines apart, or between two lines: the AMX product copies some."""
    x, w, bias = matrices(library, m, 64, 640, torch.bfloat16)
    matrix, engine = packed(library, w), open_engine(library.best_isa, 2)
    expected = multiply(engine, x, matrix, bias, torch.float32)
    for stride, start in ((640, 0), (672, 0), (672, 1), (704, 0), (650, 0)):
        memory = torch.full((m * stride + start,), torch.nan, dtype=torch.bfloat16)
        there = memory.as_strided((m, 640), (stride, 1), start)
        there.copy_(x)
        assert torch.equal(multiply(engine, there, matrix, bias, torch.float32), expected), (stride, start)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_come_back(library: KernelLibrary, open_engine: OpenEngine, dtype: torch.dtype) -> None:
    _, w, _ = matrices(library, 1, 70, 45, dtype)
    ids = torch.tensor([69, 0, 33, 33, 16, *range(50)])
    matrix = packed(library, w)
    for count in (0, 1, 5, 55):
        assert torch.equal(read_rows(open_engine(Isa.PORTABLE), matrix, ids[:count]), w[ids[:count]])


def test_strided_rows_of_x_are_read_in_place(library: KernelLibrary, open_engine: OpenEngine) -> None:
    x, w, _ = matrices(library, 9, 40, 64, torch.bfloat16)
    wide = torch.full((9, 100), torch.nan, dtype=torch.bfloat16)
    wide[:, :64] = x
    matrix, engine = packed(library, w), open_engine(library.best_isa)
    expected = multiply(engine, x, matrix, None, torch.bfloat16)
    assert torch.equal(multiply(engine, wide[:, :64], matrix, None, torch.bfloat16), expected)


def test_wrong_tensors_are_refused(library: KernelLibrary, open_engine: OpenEngine) -> None:
    x, w, bias = matrices(library, 3, 8, 16, torch.bfloat16)
    matrix, engine = packed(library, w), open_engine(library.best_isa)
    for bad_x, bad_bias in [
        (x.float(), None),
        (x[:, :15], None),
        (x[0], None),
        (x, bias[:7]),
        (x, bias.double()),
    ]:
        with pytest.raises(ValueError, match=r"x (is|has)|bias"):
            multiply(engine, bad_x, matrix, bad_bias, torch.bfloat16)
    for start, rows in [(7, w[:2]), (-1, w[:1]), (0, w[:, :3]), (0, w[0])]:
        with pytest.raises(ValueError, match=r"fit|size"):
            matrix.write_rows(start, rows)
    for ids in (torch.tensor([8]), torch.tensor([-1]), torch.tensor([1.0]), torch.arange(8)[::2]):
        with pytest.raises(ValueError, match=r"size|ids"):
            read_rows(engine, matrix, ids)
    assert torch.equal(read_rows(engine, matrix, torch.arange(8)), w)


def test_several_weights_fill_the_columns_of_one_result(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    x, w, bias = matrices(library, 5, 100, 64, torch.bfloat16)
    whole = packed(library, w)
    first, second = packed(library, w[:37]), packed(library, w[37:])
    for isa in library.isas:
        engine = open_engine(isa)
        y = torch.full((5, 110), 7.0, dtype=torch.bfloat16)
        multiply(engine, x, second, bias[37:], torch.bfloat16, out=y[:, 37:100])
        multiply(engine, x, first, bias[:37], torch.bfloat16, out=y[:, :37])
        assert torch.equal(y[:, :100], multiply(engine, x, whole, bias, torch.bfloat16))
        assert torch.all(y[:, 100:] == 7.0)
    for out in (y[:, :36], y[:4, :37], y[:, :37].float(), y[:, :74:2]):
        with pytest.raises(ValueError, match="no room"):
            multiply(engine, x, first, None, torch.bfloat16, out=out)


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
def test_the_border_refuses_and_writes_nothing(
    library: KernelLibrary, open_engine: OpenEngine, change: dict[str, int | None]
) -> None:
    x, w, _ = matrices(library, 3, 8, 16, torch.bfloat16)
    matrix, engine = packed(library, w), open_engine(library.best_isa)
    y = torch.full((3, 8), 7.0)
    arguments = GemmArguments(
        0, 1, 0, 0, x.data_ptr(), 16, matrix.address, None, y.data_ptr(), 8, len(x), 8, 16
    )
    for name, value in change.items():
        setattr(arguments, name, (matrix.address or 0) + 8 if name == "packed" and value else value)
    with pytest.raises(ValueError, match="native kernel"):
        library.check(library.functions.ov_gemm(engine.handle, ctypes.byref(arguments)))
    assert torch.all(y == 7.0)


def test_nothing_beyond_the_edge_is_written(library: KernelLibrary, open_engine: OpenEngine) -> None:
    """y stands in the middle of a larger array; every other element keeps its value."""
    for isa in library.isas:
        engine = open_engine(isa)
        x, w, _ = matrices(library, 19, 45, 70, torch.bfloat16)
        matrix = packed(library, w)
        y = torch.full((21, 60), 7.0, dtype=torch.bfloat16)
        arguments = GemmArguments(
            0, 0, 0, 0, x.data_ptr(), 70, matrix.address, None, y[1:, 5:].data_ptr(), 60, 19, 45, 70
        )
        library.check(library.functions.ov_gemm(engine.handle, ctypes.byref(arguments)))
        assert torch.equal(y[1:20, 5:50], multiply(engine, x, matrix, None, torch.bfloat16))
        y[1:20, 5:50] = 7.0
        assert torch.all(y == 7.0)


def test_engines_and_memory_say_what_is_wrong(library: KernelLibrary) -> None:
    for num_threads, isa in [(0, Isa.PORTABLE), (5000, Isa.PORTABLE), (1, 9)]:
        with pytest.raises(ValueError, match="native kernel"):
            Engine(library, num_threads, isa)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        Memory(library, 1 << 62)


def test_an_empty_product_is_empty(library: KernelLibrary, open_engine: OpenEngine) -> None:
    _, w, _ = matrices(library, 1, 8, 16, torch.bfloat16)
    y = multiply(
        open_engine(Isa.PORTABLE), torch.empty(0, 16).bfloat16(), packed(library, w), None, torch.bfloat16
    )
    assert y.shape == (0, 8)
    assert gemm.DTYPES[y.dtype] == 0
