"""The alert rules and the runbook agree with each other and with the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from deployment.promtool import RULES, are_valid, rules
from docs.pages import ROOT, code_words, text_of
from octavo.dialect.syntax_tree import syntax_tree
from octavo.observe.catalog import METRICS, Kind
from octavo.protocol import FinishReason
from octavo.server.http.listener import OTHER_FILES
from octavo.status import ReplicaState

PAGE = "docs/runbook.md"
PARTS = ("**Clients**", "**Look at:**", "**What to do:**", "**Clears**")
OTHER_SECTIONS = {"Set up"}
OF_PROMETHEUS = {"job", "instance"}  # labels that it adds to every series
ADDED = {"limit"}  # labels that a rule adds

STRING = r'"(?:[^"\\]|\\.)*"'
SELECTOR = re.compile(r"(?<![\w:$.])((?:octavo:|process_|up\b)[\w:]*)\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({STRING})")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
LOG = re.compile(r"Log: ((?:`[^`]+`(?:, | and )?)+)")


@cache
def labels_by_sample() -> dict[str, frozenset[str]]:
    """Return the labels of every metric that a query can use."""
    found: dict[str, frozenset[str]] = {}
    for metric in METRICS:
        labels = frozenset({"model_name", *OF_PROMETHEUS, *metric.labels})
        if metric.kind is Kind.HISTOGRAM:
            found |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
            found[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            found[metric.name] = labels
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    process = {sample.name for family in registry.collect() for sample in family.samples}
    return found | dict.fromkeys({"up", *process}, frozenset(OF_PROMETHEUS))


VALUES = {  # of labels with fixed values
    "state": {state.value for state in ReplicaState},
    "finished_reason": {reason.value for reason in FinishReason},
    "status": {"2xx", "3xx", "4xx", "5xx", "none"},
    "job": {"octavo"},
}


def problems_of(query: str) -> list[str]:
    """Return what a query uses that the server does not export."""
    problems = []
    for name, inside in SELECTOR.findall(query):
        if name not in labels_by_sample():
            problems.append(f"there is no metric {name}")
            continue
        matchers = MATCHER.findall(inside)
        if not name.startswith("octavo:") and ("job", "=", '"octavo"') not in matchers:
            problems.append(f"{name} of all programs")
        for label, operator, value in matchers:
            if label not in labels_by_sample()[name]:
                problems.append(f"{name} has no label {label}")
            elif operator == "=" and value[1:-1] not in VALUES.get(label, {value[1:-1]}):
                problems.append(f"{label} is never {value}")
    known = {label for labels in labels_by_sample().values() for label in labels}
    grouped = {label.strip() for inside in GROUPING.findall(query) for label in inside.split(",")}
    return problems + [f"there is no label {label}" for label in sorted(grouped - known)]


def sections() -> dict[str, str]:
    """Return the text of each section of the page, by its heading."""
    _, *parts = re.split(r"^## ", text_of(PAGE), flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def queries() -> list[str]:
    """Return the queries on the page, without names of groups of metrics (`octavo:key_*`)."""
    return [word for word in code_words(PAGE) if SELECTOR.search(word) and "*" not in word]


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    alerts = [rule["alert"] for rule in rules()]
    assert [name for name in sections() if name not in OTHER_SECTIONS] == alerts
    assert len(set(alerts)) == len(alerts)


@pytest.mark.parametrize("name", [rule["alert"] for rule in rules()])
def test_sections_have_all_parts_in_order(name: str) -> None:
    places = [sections()[name].find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_are_complete(rule: dict[str, dict[str, str]]) -> None:
    name = str(rule["alert"])
    assert re.fullmatch(r"Octavo([A-Z][a-z0-9]+)+", name)
    assert rule["labels"]["severity"] in ("critical", "warning")
    summary = rule["annotations"]["summary"]
    assert summary.endswith(".")
    used = set(re.findall(r"\$labels\.(\w+)", summary))
    assert used & {"instance", "model_name"}, "the summary does not name the server"
    assert used <= {label for labels in labels_by_sample().values() for label in labels} | ADDED
    assert rule["annotations"]["runbook_url"] == f"{PAGE}#{name.lower()}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_use_existing_metrics_and_labels(rule: dict[str, str]) -> None:
    assert SELECTOR.findall(rule["expr"])
    assert problems_of(rule["expr"]) == []


def test_queries_on_the_page_use_existing_metrics_and_labels() -> None:
    assert len(queries()) > 15
    assert [problem for query in queries() for problem in problems_of(query)] == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rate(octavo:replica_stalls_total[5m])", "there is no metric octavo:replica_stalls_total"),
        ('octavo:replica_state{status="ready"}', "octavo:replica_state has no label status"),
        ('octavo:replica_state{state="up"}', 'state is never "up"'),
        ("octavo:step_seconds > 1", "there is no metric octavo:step_seconds"),
        ("sum by (worker) (octavo:ready)", "there is no label worker"),
        ("process_open_fds / 2", "process_open_fds of all programs"),
        ('process_files{job="octavo"}', "there is no metric process_files"),
        ("up == 0", "up of all programs"),
    ],
)
def test_wrong_queries_are_detected(query: str, problem: str) -> None:
    assert problems_of(query) == [problem]


def test_queries_are_valid(tmp_path: Path) -> None:
    are_valid([*queries(), *(rule["expr"] for rule in rules())], tmp_path)


def test_the_reserved_files_are_those_of_the_server() -> None:
    (rule,) = [rule for rule in rules() if "process_max_fds" in rule["expr"]]
    assert f"- {OTHER_FILES})" in rule["expr"]
    assert f"less {OTHER_FILES}" in sections()[rule["alert"]]


def test_log_lines_exist() -> None:
    """What an operator is to look for in the log is written by the server."""
    named = [
        fragment
        for lines in LOG.findall(" ".join(text_of(PAGE).split()))
        for fragment in re.findall(r"`([^`]+)`", lines)
    ]
    texts = [
        node.value
        for path in (ROOT / "src/octavo").rglob("*.py")
        for node in ast.walk(syntax_tree(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(named) > 15
    assert [fragment for fragment in named if not any(fragment in text for text in texts)] == []


def test_the_rules_have_no_long_lines() -> None:
    assert max(map(len, RULES.read_text().splitlines())) <= 150
