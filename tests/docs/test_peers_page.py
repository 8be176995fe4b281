"""docs/benchmarks-peers.md agrees with its data: measured engines are not listed as unmeasured."""

from benchmarks.peers.page import DATA, page_text
from benchmarks.peers.results import Results

from docs.pages import ROOT, text_of

PAGE = "docs/benchmarks-peers.md"


def results() -> Results:
    return Results.read(ROOT / "docs/assets" / DATA)


def test_measured_engines_are_not_listed_as_unmeasured() -> None:
    _, heading, after = text_of(PAGE).partition("\nNot measured:\n")
    assert heading
    listed = {line.removeprefix("- ").split(":")[0] for line in after.splitlines() if line.startswith("- ")}
    measured = {run.engine for run in results().runs}
    assert measured == {engine.name for engine in results().engines}
    assert len(measured) > 1
    assert not listed & measured
    assert not set(results().left_out) & measured


def test_page_matches_its_data() -> None:
    assert text_of(PAGE) == page_text(results())
