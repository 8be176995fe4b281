"""Row operations match torch and are independent of the other rows in the batch, on every ISA."""

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from octavo.kernels import rows
from octavo.kernels.library import Isa, KernelLibrary, KernelPool
from octavo.kernels.rows import Activation
from octavo.ops.parameters import Norm
from octavo.ops.torch_ops import TorchOps, _rotate
from unit.kernels.instruction_sets import VECTOR_ISAS

OpenPool = Callable[..., KernelPool]
Operation = Callable[[KernelPool, torch.Tensor], torch.Tensor]
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
    """Allow a few ulp in float32, and one ulp in bfloat16, where that can change the rounding."""
    assert found.dtype == wanted.dtype
    relative = 2e-6 if found.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found, wanted, rtol=relative, atol=1e-6)


def tables(head_dim: int, num_positions: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    angles = random(num_positions, head_dim // 2, spread=3.0)
    return angles.cos(), angles.sin()


def norm_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return rows.rms_norm(pool, x, random(x.shape[-1], seed=1), EPS)


def add_norm_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows.add_rms_norm(pool, x, x.flip(1), random(x.shape[-1], seed=1), EPS))[1]


def silu_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return rows.gated(pool, x, Activation.SILU)


def gelu_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return rows.gated(pool, x, Activation.GELU)


def add_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return rows.add(pool, x, x.flip(1))


def scale_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    return rows.scale(pool, x, 0.3)


def rope_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    """The position is computed from the row itself, so that it moves with the row."""
    heads = x.view(len(x), 2, -1)
    positions = (x[:, 0].float().abs() * 10).long().clamp(max=49)
    return rows.rope(pool, heads, positions, *tables(heads.shape[2])).flatten(1)


def softcap_of(pool: KernelPool, x: torch.Tensor) -> torch.Tensor:
    """Apply it to a copy, since it works in place."""
    return rows.softcap(pool, x.clone(), 3.0)


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
def test_norms_match_torch(open_pool: OpenPool, isa: Isa, dtype: torch.dtype, width: int) -> None:
    pool, ops = open_pool(isa), torch_ops(dtype)
    norm = Norm(random(width, seed=1), EPS, 0.0)
    stream, update = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=2)
    assert_close(rows.rms_norm(pool, stream, norm.gain, EPS), ops.rms_norm(stream, norm))
    total, normed = rows.add_rms_norm(pool, stream, update, norm.gain, EPS)
    assert torch.equal(total, stream + update)
    assert_close(normed, ops.rms_norm(total, norm))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_heads_inside_a_wider_row(open_pool: OpenPool, isa: Isa, dtype: torch.dtype) -> None:
    qkv = random(4, 10, 40, dtype=dtype)
    gain = random(40, seed=1)
    for heads in (qkv[:, :6], qkv[:, 6:8], qkv[:1, 6:], qkv[:, 3:4]):
        found = rows.rms_norm(open_pool(isa), heads, gain, EPS)
        assert_close(found, torch_ops(dtype).rms_norm(heads, Norm(gain, EPS, 0.0)))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 32, 64, 80, 96, 128])
def test_rope_matches_torch_bit_for_bit(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, head_dim: int
) -> None:
    pool = open_pool(isa)
    qkv = random(5, 7, head_dim, dtype=dtype)
    positions = torch.tensor([49, 0, 3, 3, 20])
    cosines, sines = tables(head_dim)
    at = cosines[positions].unsqueeze(1), sines[positions].unsqueeze(1)
    query = qkv[:, :4]
    wanted = _rotate(query, *at)
    assert torch.equal(rows.rope(pool, query, positions, cosines, sines), wanted)
    rest = qkv[:, 4:].clone()
    assert rows.rope(pool, query, positions, cosines, sines, out=query) is query
    assert torch.equal(query, wanted)
    assert torch.equal(qkv[:, 4:], rest)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_elementwise_operations_match_torch(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, width: int
) -> None:
    pool, ops = open_pool(isa), torch_ops(dtype)
    gate_up = random(3, 2 * width, dtype=dtype, spread=4.0)
    assert_close(silu_of(pool, gate_up), ops.swiglu(gate_up))
    a, b = gate_up.chunk(2, dim=1)
    # Not torch in float32, where 1 + tanh cancels for negative gates.
    assert_close(gelu_of(pool, gate_up), (F.gelu(a.double(), approximate="tanh") * b.double()).to(dtype))
    assert torch.equal(rows.add(pool, a, b), a + b)
    assert torch.equal(rows.scale(pool, a, 1.5), a * 1.5)
    assert_close(softcap_of(pool, gate_up), (torch.tanh(gate_up.double() / 3) * 3).to(dtype))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_activations_of_extreme_values_and_nan(open_pool: OpenPool, isa: Isa) -> None:
    pool = open_pool(isa)
    gate = torch.tensor([[-1e30, -100.0, -0.0, 0.0, 100.0, 1e30, torch.inf, torch.nan]])
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    wanted = torch.tensor([[0.0, 0.0, 0.0, 0.0, 100.0, 1e30, torch.inf, torch.nan]])
    for activation in Activation:
        torch.testing.assert_close(rows.gated(pool, gate_up, activation), wanted, equal_nan=True)
    capped = torch.tensor([[-30.0, -30.0, 0.0, 0.0, 30.0, 30.0, 30.0, torch.nan]])
    torch.testing.assert_close(rows.softcap(pool, gate, 30.0), capped, equal_nan=True, atol=0.2, rtol=0)
    normed = rows.rms_norm(pool, gate.bfloat16(), torch.ones(8), EPS)
    assert normed.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_isas_agree_bit_for_bit(
    library: KernelLibrary, open_pool: OpenPool, dtype: torch.dtype, operation: Operation
) -> None:
    for width in (4, 36, 576, 2052):
        x = random(6, width, dtype=dtype, spread=5.0)
        reference = operation(open_pool(Isa.PORTABLE), x)
        for isa in library.isas:
            assert torch.equal(operation(open_pool(isa), x), reference)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_batch_and_threads_do_not_change_a_row(
    open_pool: OpenPool, isa: Isa, dtype: torch.dtype, operation: Operation
) -> None:
    x = random(67, 1028, dtype=dtype)
    together = operation(open_pool(isa, 2), x)
    assert torch.equal(operation(open_pool(isa, 1), x), together)
    for part in (slice(0, 1), slice(1, 34), slice(34, 67)):
        assert torch.equal(operation(open_pool(isa, 2), x[part]), together[part])


def test_zero_rows(open_pool: OpenPool) -> None:
    x = torch.empty(0, 32)
    for operation in OPERATIONS[:-1]:
        assert len(operation(open_pool(Isa.PORTABLE), x)) == 0


def test_invalid_tensors_are_rejected(open_pool: OpenPool) -> None:
    pool, x, gain = open_pool(Isa.PORTABLE), random(4, 32), torch.ones(32)
    zeros, heads = torch.zeros(4, dtype=torch.int64), x.view(4, 1, 32)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("float64", lambda: rows.rms_norm(pool, x.double(), gain, EPS)),
        ("contiguous", lambda: rows.rms_norm(pool, x.t(), gain, EPS)),
        ("gain", lambda: rows.rms_norm(pool, x, gain[:31], EPS)),
        ("gain", lambda: rows.rms_norm(pool, x, gain.bfloat16(), EPS)),
        ("does not match", lambda: rows.add_rms_norm(pool, x, x[:3], gain, EPS)),
        ("does not match", lambda: rows.add(pool, x, x.bfloat16())),
        ("2 \\* n", lambda: rows.gated(pool, x[:, :31], Activation.SILU)),
        ("heads", lambda: rows.rope(pool, x, zeros, *tables(32))),
        ("heads of size", lambda: rows.rope(pool, x.view(4, 2, 16), zeros, *tables(32))),
        ("positions", lambda: rows.rope(pool, heads, zeros[:3], *tables(32))),
        ("range", lambda: rows.rope(pool, heads, zeros + 50, *tables(32))),
        ("range", lambda: rows.rope(pool, heads, zeros - 1, *tables(32))),
        ("float64", lambda: rows.softcap(pool, x.double(), 3.0)),
        ("range", lambda: rows.softcap(pool, x, 0.0)),
        ("range", lambda: rows.softcap(pool, x, torch.inf)),
        ("frequencies", lambda: rows.rope_angles(pool, gain.double(), 0, 4)),
        ("frequencies", lambda: rows.rope_angles(pool, gain[::2], 0, 4)),
        ("range", lambda: rows.rope_angles(pool, gain, -1, 4)),
        ("range", lambda: rows.rope_angles(pool, -gain, 0, 4)),
        ("range", lambda: rows.rope_angles(pool, gain * torch.nan, 0, 4)),
        ("range", lambda: rows.rope_angles(pool, gain, 1 << 28, 2)),
    ]
    for message, call in wrong:
        with pytest.raises(ValueError, match=message):
            call()


HEADS = {"x_stride": 64, "x_head_stride": 32, "y_stride": 64, "y_head_stride": 32, "num_heads": 2}
INVALID_ARGUMENTS: list[tuple[str, type[ctypes.Structure], dict[str, int], list[dict[str, int | None]]]] = [
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


@pytest.mark.parametrize("case", INVALID_ARGUMENTS, ids=lambda case: case[0])
def test_the_c_interface_rejects_invalid_arguments_and_writes_nothing(
    library: KernelLibrary,
    open_pool: OpenPool,
    case: tuple[str, type[ctypes.Structure], dict[str, int], list[dict[str, int | None]]],
) -> None:
    name, structure, good, bad = case
    pool = open_pool(Isa.PORTABLE)
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
        assert function(pool.handle, ctypes.byref(structure(**(arguments | change)))) != 0, change
    assert function(None, ctypes.byref(structure(**arguments))) != 0
    assert function(pool.handle, None) != 0
    assert (guarded == 7.0).all()
    assert function(pool.handle, ctypes.byref(structure(**arguments))) == 0


def test_rope_angles_reject_invalid_arguments_and_write_nothing(
    library: KernelLibrary, open_pool: OpenPool
) -> None:
    frequencies, cosines, sines = torch.ones(8), torch.full((4, 8), 7.0), torch.full((4, 8), 7.0)
    good = [open_pool(Isa.PORTABLE).handle, frequencies.data_ptr(), 8, 0, 4]
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


def test_rope_angles_match_torch(library: KernelLibrary, open_pool: OpenPool) -> None:
    """torch in float64 is nearly exact here: it rounds to the same float32, except close to ties."""
    frequencies = 1.0 / 500_000.0 ** (torch.arange(0, 128, 2) / 128)
    for first, count in ((0, 3000), (131_072 - 7, 7), ((1 << 26) + 12_345, 2000)):
        angles = torch.outer(torch.arange(first, first + count).float(), frequencies).double()
        found = rows.rope_angles(open_pool(Isa.PORTABLE, 2), frequencies, first, count)
        for ours, theirs in zip(found, (angles.cos().float(), angles.sin().float()), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2**-23, atol=0)
            assert (ours == theirs).float().mean() > 0.999
        for isa in library.isas:
            again = rows.rope_angles(open_pool(isa, 1), frequencies, first, count)
            assert all(map(torch.equal, again, found))
        part = rows.rope_angles(open_pool(Isa.PORTABLE, 2), frequencies, first + 3, 4)
        assert all(torch.equal(whole[3:7], piece) for whole, piece in zip(found, part, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_non_finite_rows_are_detected(
    library: KernelLibrary, open_pool: OpenPool, dtype: torch.dtype
) -> None:
    x = torch.randn(9, 70, generator=torch.Generator().manual_seed(3)).to(dtype)
    for row, bad in [(2, torch.inf), (4, -torch.inf), (8, torch.nan)]:
        x[row, row * 8] = bad
    x[5] = torch.finfo(dtype).max
    wide = torch.full((9, 90), torch.nan, dtype=dtype)
    wide[:, :70] = x
    expected = torch.isfinite(x).all(dim=-1).tolist()
    for rows_of in (x, wide[:, :70]):
        assert rows.are_finite(open_pool(Isa.PORTABLE), rows_of) == expected
    assert rows.are_finite(open_pool(Isa.PORTABLE), x[:0]) == []
