"""Every instruction set gives the bits that tile_product.h and attention_softmax.h define.

The oracle for products is exact: it computes with fractions and rounds explicitly, once per operation. On a
processor with AMX, the definition is compared with the hardware it describes.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.attention import write_kv
from octavo.kernels.gemm import PackedMatrix, multiply
from octavo.kernels.library import Isa, KernelLibrary, KernelPool
from octavo.ops import AttentionSpec
from unit.kernels.instruction_sets import ISAS
from unit.kernels.test_attention_kernel import (
    Sequences,
    Shape,
    make_sequences,
    new_blocks,
    run_step,
    run_whole,
    slots_of,
    spec_of,
)

OpenPool = Callable[..., KernelPool]

SMALLEST = Fraction(1, 2**126)
LARGEST = (2 - Fraction(1, 2**23)) * 2**127


# -- The definition, in fractions ----------------------------------------------------------------------------


def rounded(exact: Fraction, sign_of_zero: float) -> float:
    """Round to 24 bits, ties to even; flush subnormal results to zero and overflow to infinity."""
    if exact == 0:
        return math.copysign(0.0, sign_of_zero)
    sign = 1.0 if exact > 0 else -1.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    size = round(size / unit) * unit  # Python rounds ties to even
    if size < SMALLEST:
        return math.copysign(0.0, sign)
    return sign * (math.inf if size > LARGEST else float(size))


def fused(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c  # infinities and NaNs, by the rules of IEEE 754
    product = Fraction(a) * Fraction(b)
    is_negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
    return rounded(product + Fraction(c), -1.0 if product == 0 and c == 0 and is_negative else 1.0)


def flushed(value: float) -> float:
    return math.copysign(0.0, value) if abs(value) < SMALLEST else value


def defined_product(x: list[float], w: list[float]) -> float:
    total = 0.0
    for start in range(0, len(x), 32):
        chains = [0.0, 0.0]
        for k in range(start, min(start + 32, len(x))):
            chains[k % 2] = fused(flushed(x[k]), flushed(w[k]), chains[k % 2])
        total = fused(1.0, fused(1.0, chains[0], chains[1]), total)
    return total


# -- The instruction sets ------------------------------------------------------------------------------------


def bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bits, with every NaN mapped to the same one."""
    values = torch.where(values.isnan(), torch.full_like(values, torch.nan), values)
    return values.view(torch.int32 if values.dtype == torch.float32 else torch.int16)


def packed(library: KernelLibrary, w: torch.Tensor) -> PackedMatrix:
    n, k = w.shape
    matrix = PackedMatrix(library, n, k, "F32" if w.dtype == torch.float32 else "BF16")
    matrix.write_rows(0, w)
    return matrix


def on_every_set(library: KernelLibrary, run: Callable[[Isa], list[torch.Tensor]], what: str) -> None:
    assert library.isas[0] == Isa.PORTABLE
    expected = run(Isa.PORTABLE)
    for isa in library.isas[1:]:
        for got, wanted in zip(run(isa), expected, strict=True):
            differs = bits(got) != bits(wanted)
            assert not differs.any(), (
                f"{what}: {isa.name} differs from PORTABLE in {int(differs.sum())} elements"
            )


EXPONENTS = {  # of bf16 numbers, biased by 127
    "ordinary": (118, 134),
    "products around the smallest normal number": (58, 70),
    "products around the largest number": (186, 194),
    "all there are": (0, 255),
}


@st.composite
def numbers(draw: st.DrawFn, count: int) -> list[float]:
    low, high = EXPONENTS[draw(st.sampled_from(sorted(EXPONENTS)))]
    pattern = st.builds(
        lambda sign, exponent, mantissa: sign << 15 | exponent << 7 | mantissa,
        st.integers(0, 1),
        st.integers(low, high),
        st.sampled_from([0, 0, 1, 127]) | st.integers(0, 127),
    )
    patterns = draw(st.lists(pattern, min_size=count, max_size=count))
    signed = [pattern - (1 << 16) if pattern >> 15 else pattern for pattern in patterns]
    values: list[float] = torch.tensor(signed, dtype=torch.int16).view(torch.bfloat16).tolist()
    return values


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), k=st.sampled_from([1, 2, 3, 31, 32, 33, 70]))
def test_products_match_the_definition(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, data: st.DataObject, k: int
) -> None:
    pool = open_pool(isa, 1)
    x, w = data.draw(numbers(k)), data.draw(numbers(k))
    matrix = packed(library, torch.tensor([w], dtype=torch.bfloat16))
    got = multiply(pool, torch.tensor([x], dtype=torch.bfloat16), matrix, None, torch.float32)[0]
    wanted = torch.tensor([defined_product(x, w)])
    assert torch.equal(bits(got), bits(wanted)), (got, wanted, x, w)


# The smallest normal number minus a fraction of its ulp. Whether the result is flushed to zero is decided
# after rounding to 24 bits, neither before it nor after rounding to the unit of subnormal numbers.
NEAR_NORMAL = [
    ([(2.0**-63, 2.0**-63), (-(2.0**-75), 2.0**-75 * part)], expected)
    for part, expected in [
        (0.5, 2.0**-126),  # a tie: rounds to even
        (0.498046875, 2.0**-126),
        (0.50390625, 0.0),
        (1.0, 0.0),  # would be a tie among subnormal numbers and round up
        (2.0, 0.0),
    ]
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", NEAR_NORMAL, ids=[str(index) for index in range(len(NEAR_NORMAL))])
def test_values_that_round_up_to_normal_are_not_flushed(
    library: KernelLibrary, open_pool: OpenPool, isa: Isa, case: tuple[list[tuple[float, float]], float]
) -> None:
    pool = open_pool(isa, 1)
    terms, expected = case
    for sign in (1.0, -1.0):
        x, w = torch.zeros(32, dtype=torch.bfloat16), torch.zeros(32, dtype=torch.bfloat16)
        for index, (a, b) in enumerate(terms):
            x[2 * index], w[2 * index] = sign * a, b
        assert defined_product(x.tolist(), w.tolist()) == sign * expected
        got = multiply(pool, x[None], packed(library, w[None]), None, torch.float32)
        assert got.item() == sign * expected


def random_patterns(generator: torch.Generator, *shape: int) -> torch.Tensor:
    drawn = torch.randint(-(2**15), 2**15, shape, generator=generator)
    return drawn.to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_products_are_identical_on_every_instruction_set(
    library: KernelLibrary, open_pool: OpenPool, dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    if dtype is torch.float32 and out_dtype is torch.bfloat16:
        pytest.skip("this combination has no product")
    generator = torch.Generator().manual_seed(11)
    for m, n, k in [
        (1, 33, 17),
        (2, 64, 64),
        (6, 40, 100),
        (7, 31, 577),
        (13, 70, 96),
        (34, 100, 130),
        (70, 65, 40),
    ]:
        for scale in (1.0, 2.0**-63, 2.0**-66, 2.0**62, None):
            if scale is None:
                x, w = (random_patterns(generator, size, k).to(dtype) for size in (m, n))
            else:
                x, w = ((torch.randn(size, k, generator=generator) * scale).to(dtype) for size in (m, n))
            bias = torch.randn(n, generator=generator) * (scale or 1.0) ** 2
            matrix = packed(library, w)
            on_every_set(
                library,
                partial(products, open_pool, x=x, matrix=matrix, bias=bias, out_dtype=out_dtype),
                f"{m} x {n} x {k}, {scale}",
            )


def products(
    open_pool: OpenPool,
    isa: Isa,
    *,
    x: torch.Tensor,
    matrix: PackedMatrix,
    bias: torch.Tensor,
    out_dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Return the products without and with the bias."""
    return [multiply(open_pool(isa), x, matrix, added, out_dtype) for added in (None, bias)]


ATTENTION = [
    (Shape(kv_heads=1, group=2, head_dim=80), [19, 560], 530, 8.0),
    (Shape(kv_heads=2, group=3, head_dim=64), [1, 33, 600], None, None),
    (Shape(kv_heads=1, group=7, head_dim=48), [1100], None, 30.0),
    (Shape(kv_heads=2, group=1, head_dim=16, block_size=64), [70, 5], 20, None),
    (Shape(kv_heads=1, group=16, head_dim=256), [47], None, None),
]


def run_last(
    pool: KernelPool, dtype: torch.dtype, sequences: Sequences, spec: AttentionSpec
) -> list[torch.Tensor]:
    """Compute the last rows of each sequence over all of its keys; more rows are slow in plain C++."""
    kv, step = new_blocks(pool, sequences, dtype), []
    for i, context in enumerate(sequences.contexts):
        start = max(0, context - 24)
        if start:
            slots = slots_of(sequences, i, 0, start)
            write_kv(pool, kv, sequences.key[i][:start], sequences.value[i][:start], slots)
        step.append((i, start, context))
    return run_step(pool, kv, sequences, step, spec)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("spread", [1.0, 30.0, 2.0**-60, 2.0**-64])
@pytest.mark.parametrize("case", ATTENTION, ids=[str(index) for index in range(len(ATTENTION))])
def test_attention_is_identical_on_every_instruction_set(
    library: KernelLibrary,
    open_pool: OpenPool,
    case: tuple[Shape, list[int], int | None, float | None],
    spread: float,
    dtype: torch.dtype,
) -> None:
    """Weights range from nearly equal to one dominant weight; some values give subnormal products with
    them."""
    shape, contexts, window, softcap = case
    sequences = make_sequences(shape, dtype, contexts)
    for rows in (*sequences.query, *sequences.value):
        rows.mul_(spread)
    spec = spec_of(shape, window=window, softcap=softcap)
    on_every_set(library, lambda isa: run_last(open_pool(isa), dtype, sequences, spec), "last rows")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_and_infinity_are_identical_on_every_instruction_set(
    library: KernelLibrary, open_pool: OpenPool, where: str, bad: float, dtype: torch.dtype
) -> None:
    sequences = make_sequences(Shape(kv_heads=1, group=3, head_dim=32), dtype, [90])
    getattr(sequences, where)[0][50, 0, 3] = bad
    for window in (None, 20):
        spec = spec_of(sequences.shape, window=window)

        def run(isa: Isa, spec: AttentionSpec = spec) -> list[torch.Tensor]:
            return run_whole(open_pool(isa), dtype, sequences, spec)

        on_every_set(library, run, f"window {window}")
