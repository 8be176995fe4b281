"""benchmarks/progression in miniature."""

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.peers import page as peers_page
from benchmarks.peers.results import Results, this_machine
from benchmarks.peers.run import Comparison, RunSettings
from benchmarks.progression.page import page_text, write_page
from benchmarks.progression.stages import MIX, OFF, PLAIN, cases, engines, flags_of, miniature, stages

from octavo.config import EngineOptions


def test_each_stage_enables_one_feature_and_the_last_enables_all() -> None:
    assert [stage.name for stage in stages()] == list(OFF)
    assert flags_of(len(OFF)) == ()
    assert [case.engines for case in cases("m")][:2] == [
        (PLAIN, "continuous batching"),
        ("continuous batching", "paged KV"),
    ]
    for number in range(len(OFF)):
        before, after = flags_of(number), flags_of(number + 1)
        assert before == (*list(OFF.values())[number], *after)


def test_features_disabled_in_stages_are_on_by_default() -> None:
    """Otherwise a stage would measure nothing."""
    options = EngineOptions()
    assert (options.admission, options.prefix_caching, options.kernels, options.tape) == (
        *("continuous", True),
        *("auto", True),
    )
    assert options.block_size > 0 < options.max_step_tokens


@pytest.mark.parametrize(
    ("page", "text_of"), [("progression", page_text), ("benchmarks-peers", peers_page.page_text)]
)
def test_generated_pages_match_their_results(page: str, text_of: Callable[[Results], str]) -> None:
    docs = Path(__file__).parents[2] / "docs"
    if not (docs / f"{page}.md").exists():
        pytest.skip(f"docs/{page}.md does not exist yet")
    results = Results.read(docs / f"assets/{page}.json")
    assert (docs / f"{page}.md").read_text() == text_of(results), (
        f"docs/{page}.md is outdated: generate it again"
    )


def test_stages_run_and_produce_a_page(tiny_checkpoint: Path, tmp_path: Path) -> None:
    chosen = [
        miniature(case) for case in cases(tiny_checkpoint.name) if case.title in (MIX, "continuous batching")
    ]
    servers = engines(("--max-model-len", "128", "--kv-memory", "4MiB"))
    page = tmp_path / "progression.md"
    settings = RunSettings(
        *(tiny_checkpoint.parent, tmp_path / "logs", tmp_path / "assets/progression.json", 1, 1),
        give_up_ratio=0.0,
    )
    with Comparison(settings, [*servers[:2], servers[-1]], Results(this_machine(), 1)) as comparison:
        comparison.run(chosen)
    assert comparison.results.left_out == {}
    assert len(comparison.results.runs) == 2 + 3
    assert all(run.summary.num_short == 0 == run.summary.num_failed for run in comparison.results.runs)
    write_page(comparison.results, page)
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("| continuous batching |")]
    before, after, gain, mix = line.strip("| ").split(" | ")[-4:]
    assert float(gain) == pytest.approx(
        float(after.replace(",", "")) / float(before.replace(",", "")), rel=0.05
    )
    assert float(mix.replace(",", "")) > 0
    assert (tmp_path / "assets/progression.svg").stat().st_size > 0
