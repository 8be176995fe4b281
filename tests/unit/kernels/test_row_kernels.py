"""Row operations: as torch has them, and the same for a row whatever stands beside it, on every ISA."""

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from octavo.kernels import rows
from octavo.kernels.library import Engine, Isa, KernelLibrary
from octavo.kernels.rows import Activation
from octavo.ops.parameters import Norm
from octavo.ops.torch_ops import TorchOps, _rotate
from unit.kernels.instruction_sets import VECTOR_ISAS

OpenEngine = Callable[..., Engine]
Operation = Callable[[Engine, torch.Tensor], torch.Tensor]
DTYPES = [torch.bfloat16, torch.float32]
WIDTHS = [1, 2, 15, 16, 17, 64, 80, 576, 1000]
EPS = 1e-5


def random(
    *shape: int, dtype: torch.dtype = torch.float32, spread: float = 2.0, seed: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * spread).to(dtype)


def torch_ops(dtype: torch.dtype) -> TorchOps:
    return TorchOps(torch.device("cpu"), dtype)


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """To some units in the last place of float32; in bfloat16, where that moves a rounding, to one unit."""
    assert found.dtype == wanted.dtype
    relative = 2e-6 if found.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found, wanted, rtol=relative, atol=1e-6)


def tables(head_dim: int, num_positions: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    angles = random(num_positions, head_dim // 2, spread=3.0)
    return angles.cos(), angles.sin()


def norm_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return rows.rms_norm(engine, x, random(x.shape[-1], seed=1), EPS)


def add_norm_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows.add_rms_norm(engine, x, x.flip(1), random(x.shape[-1], seed=1), EPS))[1]


def silu_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return rows.gated(engine, x, Activation.SILU)


def gelu_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return rows.gated(engine, x, Activation.GELU)


def add_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return rows.add(engine, x, x.flip(1))


def scale_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    return rows.scale(engine, x, 0.3)


def rope_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    """The position comes from the row itself, so that it goes with it."""
    heads = x.view(len(x), 2, -1)
    positions = (x[:, 0].float().abs() * 10).long().clamp(max=49)
    return rows.rope(engine, heads, positions, *tables(heads.shape[2])).flatten(1)


def softcap_of(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    """Of a copy, since it is done in place."""
    return rows.softcap(engine, x.clone(), 3.0)


OPERATIONS: list[Operation] = [
    norm_of,
    add_norm_of,
    silu_of,
    gelu_of,
    add_of,
    scale_of,
    softcap_of,
    rope_of,
]


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_are_those_of_torch(open_engine: OpenEngine, isa: Isa, dtype: torch.dtype, width: int) -> None:
    engine, ops = open_engine(isa), torch_ops(dtype)
    norm = Norm(random(width, seed=1), EPS, 0.0)
    stream, update = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=2)
    assert_close(rows.rms_norm(engine, stream, norm.gain, EPS), ops.rms_norm(stream, norm))
    total, normed = rows.add_rms_norm(engine, stream, update, norm.gain, EPS)
    assert torch.equal(total, stream + update)
    assert_close(normed, ops.rms_norm(total, norm))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_heads_inside_a_wider_row(open_engine: OpenEngine, isa: Isa, dtype: torch.dtype) -> None:
    qkv = random(4, 10, 40, dtype=dtype)
    gain = random(40, seed=1)
    for heads in (qkv[:, :6], qkv[:, 6:8], qkv[:1, 6:], qkv[:, 3:4]):
        found = rows.rms_norm(open_engine(isa), heads, gain, EPS)
        assert_close(found, torch_ops(dtype).rms_norm(heads, Norm(gain, EPS, 0.0)))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 32, 64, 80, 96, 128])
def test_rope_is_that_of_torch_to_the_bit(
    open_engine: OpenEngine, isa: Isa, dtype: torch.dtype, head_dim: int
) -> None:
    engine = open_engine(isa)
    qkv = random(5, 7, head_dim, dtype=dtype)
    positions = torch.tensor([49, 0, 3, 3, 20])
    cosines, sines = tables(head_dim)
    at = cosines[positions].unsqueeze(1), sines[positions].unsqueeze(1)
    query = qkv[:, :4]
    wanted = _rotate(query, *at)
    assert torch.equal(rows.rope(engine, query, positions, cosines, sines), wanted)
    rest = qkv[:, 4:].clone()
    assert rows.rope(engine, query, positions, cosines, sines, out=query) is query
    assert torch.equal(query, wanted)
    assert torch.equal(qkv[:, 4:], rest)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_elementwise_operations_are_those_of_torch(
    open_engine: OpenEngine, isa: Isa, dtype: torch.dtype, width: int
) -> None:
    engine, ops = open_engine(isa), torch_ops(dtype)
    gate_up = random(3, 2 * width, dtype=dtype, spread=4.0)
    assert_close(silu_of(engine, gate_up), ops.swiglu(gate_up))
    a, b = gate_up.chunk(2, dim=1)
    # Not torch's own float32: for negative gates its 1 + tanh cancels.
    assert_close(gelu_of(engine, gate_up), (F.gelu(a.double(), approximate="tanh") * b.double()).to(dtype))
    assert torch.equal(rows.add(engine, a, b), a + b)
    assert torch.equal(rows.scale(engine, a, 1.5), a * 1.5)
    assert_close(softcap_of(engine, gate_up), (torch.tanh(gate_up.double() / 3) * 3).to(dtype))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_activations_far_out_and_nan(open_engine: OpenEngine, isa: Isa) -> None:
    engine = open_engine(isa)
    gate = torch.tensor([[-1e30, -100.0, -0.0, 0.0, 100.0, 1e30, torch.inf, torch.nan]])
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    wanted = torch.tensor([[0.0, 0.0, 0.0, 0.0, 100.0, 1e30, torch.inf, torch.nan]])
    for activation in Activation:
        torch.testing.assert_close(rows.gated(engine, gate_up, activation), wanted, equal_nan=True)
    capped = torch.tensor([[-30.0, -30.0, 0.0, 0.0, 30.0, 30.0, 30.0, torch.nan]])
    torch.testing.assert_close(rows.softcap(engine, gate, 30.0), capped, equal_nan=True, atol=0.2, rtol=0)
    normed = rows.rms_norm(engine, gate.bfloat16(), torch.ones(8), EPS)
    assert normed.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_isas_agree_to_the_bit(
    library: KernelLibrary, open_engine: OpenEngine, dtype: torch.dtype, operation: Operation
) -> None:
    for width in (4, 36, 576, 2052):
        x = random(6, width, dtype=dtype, spread=5.0)
        reference = operation(open_engine(Isa.PORTABLE), x)
        for isa in library.isas:
            assert torch.equal(operation(open_engine(isa), x), reference)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_row_is_the_same_alone_in_a_batch_and_on_any_number_of_threads(
    open_engine: OpenEngine, isa: Isa, dtype: torch.dtype, operation: Operation
) -> None:
    x = random(67, 1028, dtype=dtype)
    together = operation(open_engine(isa, 2), x)
    assert torch.equal(operation(open_engine(isa, 1), x), together)
    for part in (slice(0, 1), slice(1, 34), slice(34, 67)):
        assert torch.equal(operation(open_engine(isa, 2), x[part]), together[part])


def test_no_rows_are_no_rows(open_engine: OpenEngine) -> None:
    x = torch.empty(0, 32)
    for operation in OPERATIONS[:-1]:
        assert len(operation(open_engine(Isa.PORTABLE), x)) == 0


def test_wrong_tensors_are_refused(open_engine: OpenEngine) -> None:
    engine, x, gain = open_engine(Isa.PORTABLE), random(4, 32), torch.ones(32)
    zeros, heads = torch.zeros(4, dtype=torch.int64), x.view(4, 1, 32)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("float64", lambda: rows.rms_norm(engine, x.double(), gain, EPS)),
        ("contiguous", lambda: rows.rms_norm(engine, x.t(), gain, EPS)),
        ("gain", lambda: rows.rms_norm(engine, x, gain[:31], EPS)),
        ("gain", lambda: rows.rms_norm(engine, x, gain.bfloat16(), EPS)),
        ("beside", lambda: rows.add_rms_norm(engine, x, x[:3], gain, EPS)),
        ("beside", lambda: rows.add(engine, x, x.bfloat16())),
        ("2 \\* n", lambda: rows.gated(engine, x[:, :31], Activation.SILU)),
        ("heads", lambda: rows.rope(engine, x, zeros, *tables(32))),
        ("turn", lambda: rows.rope(engine, x.view(4, 2, 16), zeros, *tables(32))),
        ("positions", lambda: rows.rope(engine, heads, zeros[:3], *tables(32))),
        ("range", lambda: rows.rope(engine, heads, zeros + 50, *tables(32))),
        ("range", lambda: rows.rope(engine, heads, zeros - 1, *tables(32))),
        ("float64", lambda: rows.softcap(engine, x.double(), 3.0)),
        ("range", lambda: rows.softcap(engine, x, 0.0)),
        ("range", lambda: rows.softcap(engine, x, torch.inf)),
        ("frequencies", lambda: rows.rope_angles(engine, gain.double(), 0, 4)),
        ("frequencies", lambda: rows.rope_angles(engine, gain[::2], 0, 4)),
        ("range", lambda: rows.rope_angles(engine, gain, -1, 4)),
        ("range", lambda: rows.rope_angles(engine, -gain, 0, 4)),
        ("range", lambda: rows.rope_angles(engine, gain * torch.nan, 0, 4)),
        ("range", lambda: rows.rope_angles(engine, gain, 1 << 28, 2)),
    ]
    for message, call in wrong:
        with pytest.raises(ValueError, match=message):
            call()


HEADS = {"x_stride": 64, "x_head_stride": 32, "y_stride": 64, "y_head_stride": 32, "num_heads": 2}
BORDER: list[tuple[str, type[ctypes.Structure], dict[str, int], list[dict[str, int | None]]]] = [
    (
        "ov_rms_norm",
        rows.RmsNormArguments,
        {**HEADS, "width": 32},
        [
            {"x": None},
            {"gain": None},
            {"y": None},
            {"dtype": 2},
            {"width": 0},
            {"num_heads": -1},
            {"num_rows": 1 << 40},
            {"x_stride": 63},
            {"y_head_stride": 31},
            {"x_head_stride": 1 << 60},
        ],
    ),
    (
        "ov_add_rms_norm",
        rows.AddRmsNormArguments,
        {"stream_stride": 64, "update_stride": 64, "sum_stride": 64, "y_stride": 64, "width": 64},
        [{"stream": None}, {"sum": None}, {"update_stride": 63}, {"sum_stride": -1}, {"num_rows": 0}],
    ),
    (
        "ov_rope",
        rows.RopeArguments,
        {**HEADS, "head_dim": 32, "num_positions": 1},
        [{"cosines": None}, {"positions": None}, {"head_dim": 31}, {"num_positions": 0}, {"y_stride": 60}],
    ),
    (
        "ov_gated",
        rows.GatedArguments,
        {"gate_up_stride": 128, "y_stride": 64, "width": 64},
        [{"gate_up": None}, {"activation": 2}, {"gate_up_stride": 127}, {"y_stride": 63}, {"dtype": -1}],
    ),
    (
        "ov_add",
        rows.AddArguments,
        {"a_stride": 64, "b_stride": 64, "y_stride": 64, "width": 64},
        [{"a": None}, {"b": None}, {"y": None}, {"b_stride": 0}, {"width": -1}],
    ),
    (
        "ov_scale",
        rows.ScaleArguments,
        {"x_stride": 64, "y_stride": 64, "width": 64},
        [{"x": None}, {"y": None}, {"x_stride": 63}, {"num_rows": -5}],
    ),
    (
        "ov_softcap",
        rows.SoftcapArguments,
        {"x_stride": 64, "y_stride": 64, "width": 64, "cap": 2},
        [{"x": None}, {"y": None}, {"y_stride": 63}, {"width": 0}, {"dtype": 3}, {"cap": 0}, {"cap": -1}],
    ),
]


@pytest.mark.parametrize("case", BORDER, ids=lambda case: case[0])
def test_the_border_refuses_and_writes_nothing(
    library: KernelLibrary,
    open_engine: OpenEngine,
    case: tuple[str, type[ctypes.Structure], dict[str, int], list[dict[str, int | None]]],
) -> None:
    name, structure, good, bad = case
    engine = open_engine(Isa.PORTABLE)
    memory = torch.zeros(2, 256)
    pointers = {"gain", "x", "stream", "update", "cosines", "sines", "positions", "gate_up", "a", "b"}
    arguments: dict[str, int | None] = {"dtype": 1, "num_rows": 2, **good}
    for field, *_ in structure._fields_:
        if field in pointers:
            arguments[field] = memory[0].data_ptr()
    guarded = torch.full((2, 256), 7.0)
    for field in ("y", "sum"):
        if hasattr(structure, field):
            arguments[field] = guarded.data_ptr()
    function = getattr(library.functions, name)
    for change in bad:
        assert function(engine.handle, ctypes.byref(structure(**(arguments | change)))) != 0, change
    assert function(None, ctypes.byref(structure(**arguments))) != 0
    assert function(engine.handle, None) != 0
    assert (guarded == 7.0).all()
    assert function(engine.handle, ctypes.byref(structure(**arguments))) == 0


def test_the_border_of_rope_angles_refuses_and_writes_nothing(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    frequencies, cosines, sines = torch.ones(8), torch.full((4, 8), 7.0), torch.full((4, 8), 7.0)
    good = [open_engine(Isa.PORTABLE).handle, frequencies.data_ptr(), 8, 0, 4]
    good += [cosines.data_ptr(), sines.data_ptr()]
    changes: list[tuple[int, int | None]] = [(place, None) for place in (0, 1, 5, 6)]
    changes += [(2, 0), (2, -1), (3, -1), (3, 1 << 60), (4, 0), (4, 1 << 40)]
    for place, value in changes:
        arguments = [*good]
        arguments[place] = value
        assert library.functions.ov_rope_angles(*arguments) != 0, (place, value)
    assert (cosines == 7.0).all()
    assert (sines == 7.0).all()
    assert library.functions.ov_rope_angles(*good) == 0
    assert (cosines[0] == 1.0).all()
    assert (sines[0] == 0.0).all()


def test_the_angles_of_rope_are_those_of_torch(library: KernelLibrary, open_engine: OpenEngine) -> None:
    """torch's double is as good as exact here: the same float32, but where one lies between two."""
    frequencies = 1.0 / 500_000.0 ** (torch.arange(0, 128, 2) / 128)
    for first, count in ((0, 3000), (131_072 - 7, 7), ((1 << 26) + 12_345, 2000)):
        angles = torch.outer(torch.arange(first, first + count).float(), frequencies).double()
        found = rows.rope_angles(open_engine(Isa.PORTABLE, 2), frequencies, first, count)
        for ours, theirs in zip(found, (angles.cos().float(), angles.sin().float()), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2**-23, atol=0)
            assert (ours == theirs).float().mean() > 0.999
        for isa in library.isas:
            again = rows.rope_angles(open_engine(isa, 1), frequencies, first, count)
            assert all(map(torch.equal, again, found))
        part = rows.rope_angles(open_engine(Isa.PORTABLE, 2), frequencies, first + 3, 4)
        assert all(torch.equal(whole[3:7], piece) for whole, piece in zip(found, part, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_that_are_not_finite_are_found(
    library: KernelLibrary, open_engine: OpenEngine, dtype: torch.dtype
) -> None:
    x = torch.randn(9, 70, generator=torch.Generator().manual_seed(3)).to(dtype)
    for row, bad in [(2, torch.inf), (4, -torch.inf), (8, torch.nan)]:
        x[row, row * 8] = bad
    x[5] = torch.finfo(dtype).max
    wide = torch.full((9, 90), torch.nan, dtype=dtype)
    wide[:, :70] = x
    expected = torch.isfinite(x).all(dim=-1).tolist()
    for rows_of in (x, wide[:, :70]):
        assert rows.are_finite(open_engine(Isa.PORTABLE), rows_of) == expected
    assert rows.are_finite(open_engine(Isa.PORTABLE), x[:0]) == []
