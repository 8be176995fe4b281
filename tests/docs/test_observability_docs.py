"""The metrics page and the dashboard agree with the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from data.json_types import Json
from octavo.observe.catalog import METRICS, Kind, Metric

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/observability.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/octavo.json").read_text())
QUERIED = re.compile(r"octavo:\w+")


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"


def samples() -> set[str]:
    """Return the metric names that a query can use."""
    plain = {metric.name for metric in METRICS if metric.kind is not Kind.HISTOGRAM}
    histograms = [metric.name for metric in METRICS if metric.kind is Kind.HISTOGRAM]
    return plain | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def texts(content: Json) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for one in content.values() if isinstance(content, dict) else content:
            yield from texts(one)


def test_the_page_lists_every_metric() -> None:
    listed = [line for line in PAGE.splitlines() if line.startswith("| `octavo:")]
    assert listed == [row(metric) for metric in METRICS]


def test_metric_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_example_queries_use_existing_metrics() -> None:
    questions = PAGE[PAGE.index("Useful questions") : PAGE.index("## Logs")]
    asked = set(QUERIED.findall(questions))
    assert len(asked) > 4
    assert asked <= samples()


def test_dashboard_uses_every_metric_and_no_other() -> None:
    asked = {name for text in texts(DASHBOARD) for name in QUERIED.findall(text)}
    assert asked <= samples()
    # The dashboard shows every metric: an unused metric should not exist.
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    assert shown == {metric.name for metric in METRICS}


def test_dashboard_labels_exist() -> None:
    # Prometheus adds `instance`.
    known = {"le", "model_name", "instance", *(label for metric in METRICS for label in metric.labels)}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            used = re.findall(r"by \((\w+)\)", target["expr"]) + re.findall(
                r"\{\{(\w+)\}\}", target["legendFormat"]
            )
            assert set(used) <= known, panel["title"]


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
