"""Export the metrics to Prometheus."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

import octavo
from octavo.observe import catalog
from octavo.observe.audit_counts import AuditCounts
from octavo.observe.catalog import Kind, Metric
from octavo.observe.engine_tally import EngineTotals
from octavo.observe.histogram import Histogram
from octavo.observe.key_usage import KeyUsage
from octavo.observe.request_metrics import RequestMetrics
from octavo.protocol import EngineFacts, EngineStats, FinishReason
from octavo.status import ReplicaState, ReplicaStatus

Values = Mapping[tuple[str, ...], float]  # by the values of the metric's labels


@dataclass(frozen=True)
class MetricsSnapshot:
    """The source of all metrics at one moment."""

    model_name: str
    requests: RequestMetrics
    engines: EngineTotals
    replicas: tuple[ReplicaStatus, ...]
    num_restarts: int
    num_queued: int
    num_tokens_queued: int
    max_queued: int
    max_tokens_queued: int
    num_unsent: int  # sequences that wait in the front end
    queue_seconds: float
    num_moves: int
    audits: AuditCounts
    num_tasks: int
    is_ready: bool
    facts: EngineFacts | None
    keys: Mapping[str, KeyUsage] | None = None  # by the name of the keys; None: no keys are required


def make_registry(take_snapshot: Callable[[], MetricsSnapshot]) -> CollectorRegistry:
    """Return a registry of Octavo's metrics and the standard ones of a process
    (`process_resident_memory_bytes`, ...)."""
    registry = CollectorRegistry()
    registry.register(OctavoCollector(take_snapshot))
    ProcessCollector(registry=registry)
    return registry


def make_usage_registry(model_name: str, keys: Mapping[str, KeyUsage]) -> CollectorRegistry:
    """Return a registry of what some keys have used, and nothing else."""
    registry = CollectorRegistry()
    registry.register(UsageCollector(model_name, keys))
    return registry


class UsageCollector(Collector):
    def __init__(self, model_name: str, keys: Mapping[str, KeyUsage]) -> None:
        self._model_name = model_name
        self._keys = keys

    def collect(self) -> Iterator[Family]:
        for metric, values in _of_keys(self._keys):
            yield _filled(metric, self._model_name, values)


class OctavoCollector(Collector):
    def __init__(self, take_snapshot: Callable[[], MetricsSnapshot]) -> None:
        self._take_snapshot = take_snapshot

    def describe(self) -> Iterable[Family]:
        """Return all families without values. The registry calls this to find duplicate names."""
        return [_family(metric) for metric in catalog.METRICS]

    def collect(self) -> Iterator[Family]:
        snapshot = self._take_snapshot()
        of_keys = () if snapshot.keys is None else _of_keys(snapshot.keys)
        for metric, values in (
            *_of_requests(snapshot),
            *of_keys,
            *_of_engine(snapshot),
            *_of_replicas(snapshot.replicas),
            *_of_server(snapshot),
        ):
            yield _filled(metric, snapshot.model_name, values)


def _of_requests(snapshot: MetricsSnapshot) -> Iterator[tuple[Metric, Values | Histogram]]:
    requests = snapshot.requests
    # What has not occurred is exported as 0, so that the first error shows as an increase.
    no_errors: Values = {(route, "5xx"): 0 for route, _ in requests.http}
    yield catalog.HTTP_REQUESTS, {**no_errors, **requests.http}
    yield catalog.FINISHED, {(reason.value,): requests.finished[reason.value] for reason in FinishReason}
    yield catalog.PROMPT_TOKENS, {(): requests.prompt_tokens}
    yield catalog.GENERATION_TOKENS, {(): requests.generation_tokens}
    yield catalog.TIME_TO_FIRST_TOKEN, requests.time_to_first_token
    yield catalog.INTER_TOKEN_LATENCY, requests.inter_token_latency
    yield catalog.E2E_LATENCY, requests.e2e_latency
    yield catalog.QUEUE_TIME, requests.queue_time
    yield catalog.PREFILL_TIME, requests.prefill_time
    yield catalog.DECODE_TIME, requests.decode_time


def _of_keys(keys: Mapping[str, KeyUsage]) -> Iterator[tuple[Metric, Values]]:
    yield (
        catalog.KEY_REQUESTS,
        {(key, status): value for key, usage in keys.items() for status, value in usage.requests.items()},
    )
    yield catalog.KEY_PROMPT_TOKENS, {(key,): usage.prompt_tokens for key, usage in keys.items()}
    yield catalog.KEY_GENERATION_TOKENS, {(key,): usage.generation_tokens for key, usage in keys.items()}
    yield (
        catalog.KEY_REJECTED,
        {(key, limit): value for key, usage in keys.items() for limit, value in usage.rejected.items()},
    )
    yield catalog.KEY_IN_FLIGHT, {(key,): usage.num_in_flight for key, usage in keys.items()}


def _of_engine(snapshot: MetricsSnapshot) -> Iterator[tuple[Metric, Values | Histogram]]:
    engines = snapshot.engines
    counts, live = engines.counts, engines.live  # a dead engine holds nothing
    yield catalog.PREFIX_QUERIES, {(): counts.prompt_tokens}
    yield catalog.PREFIX_HITS, {(): counts.prompt_tokens_cached}
    yield catalog.PREEMPTIONS, {(): counts.preemptions}
    yield catalog.DRAFTED, {(): counts.tokens_drafted}
    yield catalog.ACCEPTED, {(): counts.tokens_accepted}
    yield catalog.STEP_TIME, engines.step_seconds
    yield (
        catalog.STARTUP,
        {(phase.name.lower(),): seconds for phase, seconds in engines.phase_seconds.items()},
    )
    yield catalog.RUNNING, {(): sum(stats.num_running for stats in live)}
    yield catalog.WAITING, {(): sum(stats.num_waiting for stats in live) + snapshot.num_unsent}
    num_filled = [stats.blocks_total - stats.blocks_free for stats in live]
    num_used = [stats.blocks_total - stats.blocks_free - stats.blocks_idle for stats in live]
    yield catalog.KV_USE, {(): _fraction_of_blocks(live, num_used)}
    yield catalog.KV_FILLED, {(): _fraction_of_blocks(live, num_filled)}


def _of_replicas(replicas: Sequence[ReplicaStatus]) -> Iterator[tuple[Metric, Values]]:
    yield (
        catalog.REPLICA_STATE,
        {(one.name, state.value): int(one.state is state) for one in replicas for state in ReplicaState},
    )
    values: tuple[tuple[Metric, Callable[[ReplicaStatus], float]], ...] = (
        (catalog.REPLICA_RUNNING, lambda one: one.running),
        (catalog.REPLICA_WAITING, lambda one: one.waiting),
        (catalog.REPLICA_KV_USE, lambda one: one.kv_blocks_used / (one.kv_blocks_total or 1)),
        (catalog.REPLICA_BUSY, lambda one: one.step_seconds),
        (catalog.REPLICA_TOKENS, lambda one: one.tokens),
        (catalog.REPLICA_PREFIX_QUERIES, lambda one: one.prompt_tokens),
        (catalog.REPLICA_PREFIX_HITS, lambda one: one.prompt_tokens_cached),
        (catalog.REPLICA_PREEMPTIONS, lambda one: one.preemptions),
        (catalog.REPLICA_RESTARTS, lambda one: one.failures),
        (catalog.REPLICA_SUSPICIONS, lambda one: one.suspicions),
        (catalog.REPLICA_MOVES_IN, lambda one: one.moves_in),
        (catalog.REPLICA_MOVES_OUT, lambda one: one.moves_out),
    )
    for metric, value_of in values:
        yield metric, {(one.name,): value_of(one) for one in replicas}
    refused = [(one.name, *item) for one in replicas for item in one.refused_connections.items()]
    yield catalog.REPLICA_REFUSED, {(name, reason): number for name, reason, number in refused}


def _of_server(snapshot: MetricsSnapshot) -> Iterator[tuple[Metric, Values | Histogram]]:
    yield catalog.QUEUED, {(): snapshot.num_queued}
    yield catalog.QUEUED_TOKENS, {(): snapshot.num_tokens_queued}
    yield catalog.QUEUE_SECONDS, {(): snapshot.queue_seconds}
    yield catalog.MAX_QUEUED, {(): snapshot.max_queued}
    yield catalog.MAX_QUEUED_TOKENS, {(): snapshot.max_tokens_queued}
    yield catalog.READY, {(): int(snapshot.is_ready)}
    yield catalog.ENGINE_RESTARTS, {(): snapshot.num_restarts}
    yield catalog.MOVES, {(): snapshot.num_moves}
    yield catalog.AUDITED, {(): snapshot.audits.num_compared}
    # From 0 on, so that the first mismatch shows as an increase.
    wrong = dict.fromkeys((one.name for one in snapshot.replicas), 0) | snapshot.audits.num_wrong
    yield catalog.AUDIT_MISMATCHES, {(name,): count for name, count in wrong.items()}
    yield catalog.TASKS, {(): snapshot.num_tasks}
    facts = snapshot.facts
    about_engine = ("", "", "") if facts is None else (facts.device, facts.dtype, facts.system_fingerprint)
    yield catalog.BUILD, {(octavo.__version__, *about_engine): 1}


def _fraction_of_blocks(live: Sequence[EngineStats], numbers: Sequence[int]) -> float:
    total = sum(stats.blocks_total for stats in live)
    return sum(numbers) / total if total else 0.0


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    labels = ("model_name", *metric.labels)
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.meaning, labels=labels)
    if metric.kind is Kind.GAUGE:
        return GaugeMetricFamily(metric.name, metric.meaning, labels=labels)
    return HistogramMetricFamily(metric.name, metric.meaning, labels=labels)


def _filled(metric: Metric, model_name: str, values: Values | Histogram) -> Family:
    family = _family(metric)
    if isinstance(values, Histogram):
        assert isinstance(family, HistogramMetricFamily)
        buckets = [
            ("+Inf" if math.isinf(edge) else str(edge), float(count)) for edge, count in values.cumulative()
        ]
        family.add_metric((model_name,), buckets, values.sum)
        return family
    assert not isinstance(family, HistogramMetricFamily)
    for labels, value in values.items():
        family.add_metric((model_name, *labels), value)
    return family
