"""Every family of kernels runs and gives figures that fit together."""

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
from octavo.bench.measure import Limits
from octavo.kernels.library import Engine, find_library
from octavo.kernels.loading import load_kernels

TINY = Scale(row_counts=(1, 16, 128), rotated_bytes=1 << 20, num_turns=3, patience=0.0, run_seconds=1e-4)
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

    def probe(self) -> Limits:
        return Limits(1e10, self.best_peak)


@pytest.fixture(scope="module")
def engine() -> Engine:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    library = load_kernels(path)
    return Engine(library, 2, library.best_isa)


@pytest.fixture(autouse=True)
def _torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", SMALL_FAMILIES, ids=lambda family: family.name)
def test_figures_fit_together(family: Family, engine: Engine) -> None:
    results = list(measure_families([family], engine, SteadyMachine(), TINY))
    assert results
    for result in results:
        assert 0 < result.seconds < result.call_seconds
        assert result.fraction > 0
        assert result.speedup > 0
        assert result.num_turns == 3
        assert result.gigaflops == pytest.approx(result.intensity * result.gigabytes_per_second)
        # With steady limits the fraction is the nearer limit's, exactly.
        reached = result.gigabytes_per_second / 10 if result.bound == "memory" else result.gigaflops / 1000
        assert result.fraction == pytest.approx(reached)


def test_both_do_the_same_work(engine: Engine) -> None:
    """Shapes and values of our kernel and torch's are the same, where values can be compared."""
    for family in (SMALL_FAMILIES[0], SMALL_FAMILIES[2], SMALL_FAMILIES[5]):
        for case in family.cases(engine, TINY):
            ours, theirs = case.ours(3), case.torchs(3)
            if not isinstance(ours, tuple):
                ours, theirs = (ours,), (theirs,)
            assert isinstance(theirs, tuple)
            for our, their in zip(ours, theirs, strict=True):
                torch.testing.assert_close(our.float(), their.float(), atol=0.05, rtol=0.05)


def test_logits_are_never_computed_for_more_rows_than_in_the_engine(engine: Engine) -> None:
    cases = list(SMALL_FAMILIES[1].cases(engine, TINY))
    assert [case.num_rows for case in cases] == [m for m in TINY.row_counts if m <= LOGITS_ROWS]


def test_quantised_products_count_the_bytes_that_they_read(engine: Engine) -> None:
    for case in SMALL_FAMILIES[2].cases(engine, TINY):
        weights = case.work.num_bytes - case.num_rows * (1536 + 576) * 2
        assert 1 <= weights / (576 * 1536 // 256 * 144) < 1.05  # the packed form has some room at its end
        assert case.work.flops == 2 * 576 * 1536 * case.num_rows


def test_only_products_that_can_be_cut_into_blocks_are_measured() -> None:
    products = [family.name for family in families(["Q4_K", "Q8_0"]) if family.kind == "gemm"]
    assert len(products) == 6 + 10  # SmolLM2's rows of 576 are no multiple of 256
    assert "gemm smollm2-135m down Q4_K" in products
    assert "gemm smollm2-135m o Q4_K" not in products


def test_the_table_has_what_the_issue_asks_for() -> None:
    names = [family.name for family in families()]
    assert len(set(names)) == len(names)
    for model in ("smollm2-135m", "llama-3.2-1b"):
        assert [name for name in names if name.startswith(f"gemm {model}")] == [
            f"gemm {model} {layer}" for layer in ("qkv", "o", "gate_up", "down", "head")
        ]
        assert f"decode attention {model} 8 x 4096" in names
    assert "sampling 151936" in names
