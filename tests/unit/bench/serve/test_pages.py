"""The pages are self-contained, match the JSON, and escape text from the server."""

import json
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from data.json_types import JsonObject
from octavo.bench.serve import AtOnce, Fixed, LoadReport, LogUniform, Slo, Workload, find_target, run_load
from octavo.bench.serve.load_page import in_flight_by_time, load_page, tokens_by_time
from octavo.bench.serve.sweep import SweepBy, SweepPlan, SweepReport, run_sweep
from octavo.bench.serve.sweep_page import sweep_page
from unit.bench.serve.fake_server import FakeServer, Piece, running

VOID = {"meta", "br", "link", "img", "input"}
SMALL = Workload("small", "for tests", 5, AtOnce(), LogUniform(3, 20), Fixed(6))
EVIL = "<script>alert(1)</script>\"'&"


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects attributes, numbers and the labels of images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.numbers: dict[str, float] = {}
        self.images: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += found.items()
        if tag not in VOID:
            self._open.append(tag)
        if "data-name" in found:
            self.numbers[found["data-name"]] = float(found["data-value"])
        if tag == "svg":
            assert found["role"] == "img"
            self.images.append(found["aria-label"])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def report() -> Iterator[LoadReport]:
    def pieces(fields: JsonObject) -> list[Piece]:
        return [Piece(0.01, tokens=2)] * (fields["max_tokens"] // 2)

    with running(FakeServer(pieces, cached=1)) as server:
        yield run_load(find_target(server.url), SMALL, seed=1, slo=Slo(ttft=9.0, itl=9.0))


@pytest.fixture(scope="module")
def sweep() -> Iterator[SweepReport]:
    with running(FakeServer()) as server:
        plan = SweepPlan(SweepBy.CONCURRENCY, last=4.0, requests_per_level=2)
        yield run_sweep(find_target(server.url), SMALL, plan, slo=Slo(e2e=9.0), seed=5)


def check_alone(page: str) -> Reader:
    reader = Reader(page)
    fetching = {"src", "href", "srcset", "xlink:href", "action", "data", "poster", "background"}
    assert not {name for name, _ in reader.attributes} & fetching
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(reader.tags)
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    return reader


def test_a_load_page_is_self_contained_and_matches_the_json(report: LoadReport) -> None:
    reader = check_alone(load_page(report))
    summary = json.loads(report.as_json())["summary"]
    expected = {
        f"{field}.{name}": value
        for field in ("ttft", "itl", "tpot", "e2e")
        for name, value in summary[field].items()
    }
    for field in ("output_tokens_per_second", "requests_per_second", "goodput"):
        expected[field] = summary[field]
    expected["cache_hit_rate"] = summary["cached_tokens"] / summary["prompt_tokens"]
    assert reader.numbers == expected
    assert len(reader.images) == 4 + 1 + 2
    assert all(reader.images)


def test_a_sweep_page_is_self_contained_and_matches_the_json(sweep: SweepReport) -> None:
    reader = check_alone(sweep_page(sweep))
    content = json.loads(sweep.as_json())
    assert reader.numbers["knee"] == content["knee"] == 4.0
    for point in content["points"]:
        prefix = f"{point['level']!r}."
        assert (
            reader.numbers[prefix + "output_tokens_per_second"]
            == point["summary"]["output_tokens_per_second"]
        )
        assert reader.numbers[prefix + "ttft.p99"] == point["summary"]["ttft"]["p99"]
        assert reader.numbers[prefix + "goodput"] == point["summary"]["goodput"]
    assert len(reader.images) == 4


@pytest.mark.parametrize("knee", [None, 2.0])
def test_sweep_pages_exist_for_every_outcome(sweep: SweepReport, knee: float | None) -> None:
    points = tuple(replace(point, holds=knee is not None and point.level <= knee) for point in sweep.points)
    check_alone(sweep_page(replace(sweep, points=points, knee=knee, is_end_of_range=False)))
    check_alone(sweep_page(replace(sweep, points=points[:1], knee=None, slo=Slo())))


def test_server_text_is_escaped(report: LoadReport) -> None:
    bad = replace(report.requests[0], error=EVIL)
    requests = (bad, *report.requests[1:])
    spoilt = replace(
        report, model=EVIL, url=EVIL, requests=requests, summary=replace(report.summary, num_failed=1)
    )
    page = load_page(spoilt)
    check_alone(page)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_load_without_a_success_has_a_page(report: LoadReport) -> None:
    failed = tuple(replace(record, error="no", chunk_times=(), status=500) for record in report.requests)
    empty = replace(report.summary, ttft=None, itl=None, tpot=None, e2e=None, num_failed=5)
    assert "No request succeeded." in load_page(replace(report, requests=failed, summary=empty))


def test_the_page_of_a_long_load_is_bounded(report: LoadReport) -> None:
    many = tuple(replace(report.requests[0], number=number) for number in range(5000))
    page = load_page(replace(report, requests=many))
    check_alone(page)
    assert page.count('class="row"') <= 300
    assert "The JSON file contains 3000 more." in page


def test_tokens_over_time_sum_to_all_tokens(report: LoadReport) -> None:
    end = max(record.ended_at for record in report.requests)
    steps = tokens_by_time(report.requests, end)
    area = sum(
        (after[0] - before[0]) * before[1] for before, after in zip(steps[::2], steps[1::2], strict=True)
    )
    assert area == pytest.approx(report.summary.completion_tokens)


def test_in_flight_counts_begin_and_end_at_zero(report: LoadReport) -> None:
    counts = [count for _, count in in_flight_by_time(report.requests, 1e9)]
    assert (counts[0], counts[-1], max(counts)) == (0, 0, 5)
