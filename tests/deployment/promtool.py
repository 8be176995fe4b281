"""Evaluate the alert rules with Prometheus' own test tool, on series made of scrapes of /metrics.

Prometheus is not a dependency: without `promtool`, the tests that use it are skipped.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from data.json_types import Json
from patience import HANG_SECONDS

RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"
JOB = "octavo"
SCRAPES_PER_MINUTE = 1  # as few as the runbook allows
FIRING = 'ALERTS{alertstate="firing"}'
SUMMARY = re.compile(r'summary="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]


def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("no promtool: install Prometheus (Debian: apt-get install prometheus)")
    return path


@dataclass(frozen=True)
class Scrape:
    """One answer of GET /metrics."""

    text: str

    @cached_property
    def samples(self) -> Mapping[tuple[str, Labels], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def total(self, name: str) -> float:
        values = [value for (found, _), value in self.samples.items() if found == name]
        assert values, f"{name} is not in the scrape"
        return sum(values)

    def changed(self, name: str, value: float) -> "Scrape":
        """Return the same with another value of a metric without labels."""
        changed, count = re.subn(rf"^{name} \S+$", f"{name} {value}", self.text, flags=re.MULTILINE)
        assert count == 1, f"{name} is not in the scrape"
        return Scrape(changed)


@dataclass(frozen=True)
class Period:
    """Some minutes in which all scrapes of a server have the same result; None: it does not answer."""

    minutes: int
    scrape: Scrape | None


@dataclass(frozen=True)
class Alert:
    name: str
    labels: Labels

    @classmethod
    def of(cls, name: str, **labels: str) -> "Alert":
        """An alert of one server, unless `instance` is empty."""
        given = {"job": JOB, "instance": "a:8000", **labels}
        return cls(name, frozenset((label, value) for label, value in given.items() if value))


@dataclass(frozen=True)
class Scene:
    """What happens to servers, by the address of each, and which alerts fire at the end of which minute."""

    servers: Mapping[str, Sequence[Period]]
    expected: Mapping[int, Sequence[Alert]]


def series(instance: str, periods: Sequence[Period]) -> list[Json]:
    """Return what Prometheus stores: a series that is not in a scrape, or whose scrape fails, is stale."""
    lengths = [period.minutes * SCRAPES_PER_MINUTE for period in periods]
    samples: list[Mapping[tuple[str, Labels], float]] = [
        {("up", frozenset[tuple[str, str]]()): float(one.scrape is not None)}
        | (dict(one.scrape.samples) if one.scrape is not None else {})
        for one in periods
    ]
    found = []
    for name, labels in sorted({key for one in samples for key in one if key[0] in used_metrics()}, key=str):
        values, is_stored = [], False
        for length, one in zip(lengths, samples, strict=True):
            value = one.get((name, labels))
            gap = ["stale" if is_stored else "_", *["_"] * (length - 1)]
            values += gap if value is None else [f"{value:.9f}".rstrip("0").rstrip(".")] * length
            is_stored = value is not None
        selector = _selector(name, labels | {("job", JOB), ("instance", instance)})
        found.append({"series": selector, "values": " ".join(values)})
    return found


def check(scene: Scene, folder: Path) -> None:
    """Assert that exactly the expected alerts fire."""
    expectations = [
        {
            "expr": FIRING,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": _firing(alert), "value": 1} for alert in alerts],
        }
        for minute, alerts in scene.expected.items()
    ]
    code, output = _run([_test(scene, promql_expr_test=expectations)], folder)
    assert code == 0, output


def summaries(scenes: Sequence[Scene], folder: Path) -> list[tuple[Alert, str]]:
    """Return the expected alerts with their texts. The tool prints an alert that a test does not expect."""
    tests, alerts = [], []
    for scene in scenes:
        expected = [(minute, alert) for minute, those in scene.expected.items() for alert in those]
        times = dict.fromkeys((minute, alert.name) for minute, alert in expected)
        none = [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": []} for at, name in times]
        tests.append(_test(scene, alert_rule_test=none))
        alerts += [alert for _, alert in expected]
    _, output = _run(tests, folder)
    texts = SUMMARY.findall(output)
    assert len(texts) == len(alerts), output
    return list(zip(alerts, texts, strict=True))


def are_valid(expressions: Sequence[str], folder: Path) -> None:
    """Assert that the expressions are PromQL."""
    path = folder / "queries.yaml"
    rules = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(expressions)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = _promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def _test(scene: Scene, **tests: Json) -> Json:
    stored = [one for instance, periods in scene.servers.items() for one in series(instance, periods)]
    return {"interval": f"{60 // SCRAPES_PER_MINUTE}s", "input_series": stored, **tests}


def _firing(alert: Alert) -> str:
    severity = severities()[alert.name]
    added = {("alertname", alert.name), ("alertstate", "firing"), ("severity", severity)}
    return _selector("ALERTS", alert.labels | added)


def rules() -> list[Json]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert group["name"] == "octavo"
    found: list[Json] = group["rules"]
    return found


@cache
def used_metrics() -> frozenset[str]:
    """Return all words of the rules: the others have no influence on them."""
    return frozenset(word for rule in rules() for word in re.findall(r"[\w:]+", rule["expr"]))


def severities() -> dict[str, str]:
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules()}


def _selector(name: str, labels: Labels) -> str:
    escaped = {label: value.replace("\\", "\\\\").replace('"', '\\"') for label, value in labels}
    return name + "{" + ",".join(f'{label}="{escaped[label]}"' for label in sorted(escaped)) + "}"


def _run(tests: list[Json], folder: Path) -> tuple[int, str]:
    path = folder / "tests.yaml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(json.dumps(content))  # which is YAML, and faster to write
    done = _promtool("test", "rules", str(path))
    return done.returncode, done.stdout + done.stderr


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool(), *words], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
