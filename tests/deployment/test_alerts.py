"""Each alert fires when the fault happens that it is for, clears afterwards, and does not fire without it.

Prometheus' own tool evaluates the rules (see `promtool`), on scrapes of a real server (see `faults`).
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployment.faults import Fault, faulty_server, record_faults
from deployment.promtool import Alert, Period, Scene, Scrape, check, promtool, rules, summaries
from octavo.checkpoint import open_checkpoint
from octavo.frontend.text_model import TextModel
from octavo.observe.catalog import METRICS, Kind

pytestmark = pytest.mark.xdist_group("alerts")

BEFORE, AFTER = 20, 35  # minutes; most alerts look back for half an hour
SERVER, OTHER = "a:8000", "b:8000"
MODEL = "tiny"

Faults = Mapping[str, Fault]


@dataclass(frozen=True)
class Outcome:
    """The alerts that a fault of a server causes, and for how many minutes its last scrapes hold."""

    minutes: int
    alerts: Sequence[Alert]
    minutes_after: int = AFTER


def of_server(name: str, **labels: str) -> list[Alert]:
    return [Alert.of(name, model_name=MODEL, **labels)]


OUTCOMES: Mapping[str, Outcome] = {
    "client key": Outcome(12, [Alert.of("OctavoNotMonitored")]),
    "few files": Outcome(12, [Alert.of("OctavoOpenFilesNearlyExhausted")]),
    "server errors": Outcome(1, of_server("OctavoServerErrors")),
    "failed sequences": Outcome(1, of_server("OctavoRequestsFail")),
    "slow": Outcome(1, of_server("OctavoFirstTokenSlow")),
    "preempted": Outcome(1, of_server("OctavoKvCacheShort")),
    "full queue": Outcome(
        1,
        of_server("OctavoQueueNearlyFull", limit="requests")
        + of_server("OctavoQueueNearlyFull", limit="tokens"),
    ),
    "no progress": Outcome(15, of_server("OctavoNoProgress")),
    "wrong result": Outcome(2, of_server("OctavoWrongResults", replica="r1"), minutes_after=65),
    "killed often": Outcome(2, of_server("OctavoEngineKeepsDying")),
    "stalled often": Outcome(2, of_server("OctavoReplicaKeepsStalling", replica="r1")),
    "lost": Outcome(6, of_server("OctavoNotReady")),
    "one lost": Outcome(21, of_server("OctavoReplicaNotReady", replica="r2", state="ready")),
    "failed": Outcome(25, of_server("OctavoReplicaFailed", replica="r2", state="failed")),
    # Not worth an alert:
    "one failed sequence": Outcome(10, []),
    "killed": Outcome(10, []),
    "stalled": Outcome(10, []),
}


@pytest.fixture(scope="module")
def faults(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Faults:
    promtool()
    model = TextModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), MODEL)

    async def record() -> dict[str, Fault]:
        async with faulty_server(model) as server:
            return await record_faults(server, tmp_path_factory.mktemp("keys"))

    return asyncio.run(record())


def scene(fault: Fault, outcome: Outcome) -> Scene:
    """Return a fault after which all is well."""
    *first, last = fault.during
    during = [*(Period(1, one) for one in first), Period(outcome.minutes, last)]
    end = BEFORE + len(first) + outcome.minutes
    end_after = end + outcome.minutes_after
    periods = [Period(BEFORE, fault.before), *during, Period(outcome.minutes_after, fault.after)]
    quiet = (BEFORE - 1, end_after - 1) if outcome.alerts else range(BEFORE - 1, end_after, 2)
    return Scene({SERVER: periods}, {**{minute: [] for minute in quiet}, end - 1: outcome.alerts})


def down(faults: Faults) -> Scene:
    sound = faults["loading"].after
    periods = [Period(BEFORE, sound), Period(5, None), Period(AFTER, sound)]
    return Scene({SERVER: periods}, {19: [], 24: [Alert.of("OctavoDown")], 59: []})


def no_server(faults: Faults) -> Scene:
    return Scene({}, {9: [], 15: [Alert.of("OctavoNotMonitored", instance="")]})


def slow_start(faults: Faults) -> Scene:
    periods = [Period(20, faults["loading"].before), Period(AFTER, faults["loading"].after)]
    expected = of_server("OctavoNotReady")
    return Scene({SERVER: periods}, {14: [], 19: expected, 54: []})


def fast_start(faults: Faults) -> Scene:
    """A server that was ready is restarted, and loads its model for 10 minutes."""
    loading, sound = faults["loading"].before, faults["loading"].after
    periods = [Period(BEFORE, sound), Period(1, None), Period(10, loading), Period(AFTER, sound)]
    return Scene({SERVER: periods}, {minute: [] for minute in range(19, 66, 3)})


def restarts(faults: Faults) -> Scene:
    """The process ends three times, and is started again within a minute."""
    sound = faults["loading"].after
    started = [sound.changed("process_start_time_seconds", 1.7e9 + 60 * number) for number in range(4)]
    periods = [Period(BEFORE, started[0])]
    for one in started[1:]:
        periods += [Period(1, None), Period(4, one)]
    periods.append(Period(AFTER, started[-1]))
    expected = [Alert.of("OctavoServerKeepsRestarting")]
    return Scene({SERVER: periods}, {19: [], 30: [], 34: expected, 69: []})


def two_fingerprints(faults: Faults) -> Scene:
    """Two servers of one model, while the second is upgraded and then the first."""
    sound, another = faults["another fingerprint"].before, faults["another fingerprint"].during[0]
    first = [Period(60, sound), Period(40, another)]
    second = [Period(20, sound), Period(80, another)]
    expected = of_server("OctavoDifferentAnswers", instance="")
    return Scene({SERVER: first, OTHER: second}, {19: [], 45: [], 55: expected, 99: []})


def failed_scrapes(faults: Faults) -> Scene:
    """One scrape in four fails, which ends all series. The alerts fire nevertheless, and only for the server
    that has the fault."""
    fault = faults["one lost"]
    periods = [Period(BEFORE, fault.before)]
    for _ in range(8):
        periods += [Period(3, fault.during[0]), Period(1, None)]
    periods.append(Period(3, fault.during[0]))
    expected = of_server("OctavoReplicaNotReady", replica="r2", state="ready")
    servers = {SERVER: periods, OTHER: [Period(60, fault.before)]}
    return Scene(servers, {19: [], 52: expected})


OTHER_SCENES = (
    down, no_server, slow_start, fast_start, restarts, two_fingerprints, failed_scrapes,
)  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_fault_fires_its_alert_and_no_other(name: str, faults: Faults, tmp_path: Path) -> None:
    check(scene(faults[name], OUTCOMES[name]), tmp_path)


@pytest.mark.parametrize("staged", OTHER_SCENES, ids=lambda staged: staged.__name__)
def test_servers_that_end_start_or_differ(
    staged: Callable[[Faults], Scene], faults: Faults, tmp_path: Path
) -> None:
    check(staged(faults), tmp_path)


def test_counters_do_not_decrease(faults: Faults) -> None:
    """Prometheus takes a decrease for a restart of the server, and counts the whole value again."""
    counters = {metric.name for metric in METRICS if metric.kind is Kind.COUNTER}
    for name, fault in faults.items():
        scrapes = (fault.before, *fault.during, fault.after)
        for first, second in itertools.pairwise(scrapes):
            common = first.samples.keys() & second.samples.keys()
            decreased = [one for one in common if second.samples[one] < first.samples[one]]
            assert not [one for one in decreased if one[0] in counters], name


def test_restarts_by_the_operator_do_not_count(faults: Faults) -> None:
    fault = faults["restarted by the operator"]
    for name in ("octavo:engine_restarts_total", "octavo:replica_engine_restarts_total"):
        assert fault.before.total(name) == fault.after.total(name) == 0


def test_every_alert_fires_with_a_text_that_names_what_is_faulty(faults: Faults, tmp_path: Path) -> None:
    scenes = [scene(faults[name], outcome) for name, outcome in OUTCOMES.items()]
    scenes += [staged(faults) for staged in OTHER_SCENES]
    fired = summaries(scenes, tmp_path)
    assert {alert.name for alert, _ in fired} == {rule["alert"] for rule in rules()}
    for alert, text in fired:
        labels = dict(alert.labels)
        assert labels.get("instance", labels.get("model_name", "octavo")) in text
        assert labels.get("replica", "") in text
        assert labels.get("limit", "") in text
        assert "%!" not in text
        assert "<no value>" not in text


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "alert"),
    [
        # Another name of the metric, another name of a label, a counter that does not start at 0.
        ("stalled often", "octavo:replica_suspicions", "octavo:stalls", "OctavoReplicaKeepsStalling"),
        ("failed", ",state=", ",status=", "OctavoReplicaFailed"),
        ("wrong result", r"(?m)^octavo:audit_mismatches_total\{.* 0\.0\n", "", "OctavoWrongResults"),
    ],
)
def test_a_change_of_the_metrics_is_noticed(
    name: str, pattern: str, replacement: str, alert: str, *, faults: Faults, tmp_path: Path
) -> None:
    fault = faults[name]
    assert re.search(pattern, fault.before.text)
    before, *during, after = [
        Scrape(re.sub(pattern, replacement, one.text)) for one in (fault.before, *fault.during, fault.after)
    ]
    with pytest.raises(AssertionError, match=alert):
        check(scene(Fault(before, tuple(during), after), OUTCOMES[name]), tmp_path)
