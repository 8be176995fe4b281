"""Every kernel family runs and gives consistent figures."""

from collections.abc import Iterator

import pytest
import torch

from octavo.bench.kernels import (
    LOGITS_ROWS,
    Family,
    Scale,
    decode_family,
    families,
    gemm_family,
    measure_families,
    prefill_family,
    row_family,
    sampling_family,
)
from octavo.bench.measure import MachineLimits
from octavo.kernels.library import KernelPool, find_library
from octavo.kernels.loading import load_kernels

TINY = Scale(row_counts=(1, 16, 128), rotated_bytes=1 << 20, num_turns=3, max_wait=0.0, run_seconds=1e-4)
SMALL_FAMILIES = (
    gemm_family("smollm2-135m", "o", 576, 576),
    gemm_family("smollm2-135m", "head", 1024, 576),
    gemm_family("smollm2-135m", "down", 576, 1536, "Q4_K"),
    decode_family("smollm2-135m", 2, 64),
    prefill_family("smollm2-135m", 48),
    row_family("smollm2-135m"),
    sampling_family(512),
)


class SteadyMachine:
    best_peak = 1e12

    def probe(self) -> MachineLimits:
        return MachineLimits(1e10, self.best_peak)


@pytest.fixture(scope="module")
def pool() -> KernelPool:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    library = load_kernels(path)
    return KernelPool(library, 2, library.best_isa)


@pytest.fixture(autouse=True)
def _torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", SMALL_FAMILIES, ids=lambda family: family.name)
def test_figures_are_consistent(family: Family, pool: KernelPool) -> None:
    results = list(measure_families([family], pool, SteadyMachine(), TINY))
    assert results
    for result in results:
        assert 0 < result.seconds < result.call_seconds
        assert result.fraction > 0
        assert result.speedup > 0
        assert result.num_turns == 3
        assert result.gigaflops == pytest.approx(result.intensity * result.gigabytes_per_second)
        # With constant limits, the fraction is exactly that of the binding limit.
        reached = result.gigabytes_per_second / 10 if result.bound == "memory" else result.gigaflops / 1000
        assert result.fraction == pytest.approx(reached)


def test_kernels_and_torch_compute_the_same(pool: KernelPool) -> None:
    """Our kernel and torch give the same shapes and values, for families with comparable values."""
    for family in (SMALL_FAMILIES[0], SMALL_FAMILIES[2], SMALL_FAMILIES[5]):
        for case in family.cases(pool, TINY):
            ours, theirs = case.ours(3), case.baseline(3)
            if not isinstance(ours, tuple):
                ours, theirs = (ours,), (theirs,)
            assert isinstance(theirs, tuple)
            for our, their in zip(ours, theirs, strict=True):
                torch.testing.assert_close(our.float(), their.float(), atol=0.05, rtol=0.05)


def test_logits_rows_do_not_exceed_those_of_the_engine(pool: KernelPool) -> None:
    cases = list(SMALL_FAMILIES[1].cases(pool, TINY))
    assert [case.num_rows for case in cases] == [m for m in TINY.row_counts if m <= LOGITS_ROWS]


def test_quantised_products_count_the_bytes_they_read(pool: KernelPool) -> None:
    for case in SMALL_FAMILIES[2].cases(pool, TINY):
        weights = case.work.num_bytes - case.num_rows * (1536 + 576) * 2
        assert 1 <= weights / (576 * 1536 // 256 * 144) < 1.05  # the packed form has padding at its end
        assert case.work.flops == 2 * 576 * 1536 * case.num_rows


def test_only_products_that_divide_into_weight_blocks_are_measured() -> None:
    products = [family.name for family in families(["Q4_K", "Q8_0"]) if family.kind == "gemm"]
    assert len(products) == 6 + 10  # SmolLM2's rows of 576 are not a multiple of 256
    assert "gemm smollm2-135m down Q4_K" in products
    assert "gemm smollm2-135m o Q4_K" not in products


def test_the_table_has_every_required_kernel() -> None:
    names = [family.name for family in families()]
    assert len(set(names)) == len(names)
    for model in ("smollm2-135m", "llama-3.2-1b"):
        assert [name for name in names if name.startswith(f"gemm {model}")] == [
            f"gemm {model} {layer}" for layer in ("qkv", "o", "gate_up", "down", "head")
        ]
        assert f"decode attention {model} 8 x 4096" in names
    assert "sampling 151936" in names
