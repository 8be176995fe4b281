"""The report of a load: workload, server, summary and every request. The JSON file has these fields."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from octavo.bench.serve.record import LoadRecord
from octavo.bench.serve.summary import Slo, Summary
from octavo.bench.serve.workload import Workload

BUSY_CLIENT = 0.8  # of a core; above this, the client may be the bottleneck
LATE_SECONDS = 0.01


@dataclass(frozen=True)
class WorkloadFacts:
    """A workload in its command-line form."""

    name: str
    description: str
    num_requests: int
    arrivals: str
    prompt: str
    output: str
    shared: int

    @classmethod
    def of(cls, workload: Workload) -> "WorkloadFacts":
        return cls(
            workload.name,
            workload.description,
            workload.num_requests,
            str(workload.arrivals),
            str(workload.prompt),
            str(workload.output),
            workload.shared,
        )


@dataclass(frozen=True)
class ClientFacts:
    """How busy the client was: it may be the bottleneck instead of the server."""

    cpu_fraction: float  # of one core, used by this process during the load
    late_p99: float  # seconds by which requests were sent later than planned
    late_max: float


@dataclass(frozen=True)
class LoadReport:
    octavo: str  # version of the client
    began: float  # Unix time
    url: str
    model: str
    prompts: str  # ids, text or chat
    workload: WorkloadFacts
    seed: int
    slo: Slo
    client: ClientFacts
    summary: Summary
    requests: tuple[LoadRecord, ...]

    @property
    def warnings(self) -> list[str]:
        """Conditions that make the figures less reliable."""
        return [*_client_warnings(self.client), *_answer_warnings(self.summary, self.requests)]

    def as_json(self) -> bytes:
        content = msgspec.to_builtins(self) | {"warnings": self.warnings}
        return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"

    @classmethod
    def of_json(cls, content: bytes) -> "LoadReport":
        return msgspec.json.decode(content, type=cls)


def _client_warnings(client: ClientFacts) -> list[str]:
    warnings = []
    if client.cpu_fraction > BUSY_CLIENT:
        warnings.append(
            f"the client used {client.cpu_fraction:.0%} of a core and may be the bottleneck: run it on"
            " another machine, or reduce the load"
        )
    if client.late_p99 > LATE_SECONDS:
        warnings.append(
            f"1 % of the requests were sent at least {1e3 * client.late_p99:.0f} ms late: the machine of the"
            " client was busy"
        )
    return warnings


def _answer_warnings(summary: Summary, requests: Sequence[LoadRecord]) -> list[str]:
    warnings = []
    if summary.num_failed:
        errors = Counter(record.error for record in requests if record.error is not None)
        ((error, count),) = errors.most_common(1)
        warnings.append(
            f"{summary.num_failed} of {summary.num_requests} requests failed; {count} of them with: {error}"
        )
    if summary.num_short:
        warnings.append(
            f"{summary.num_short} answers are shorter than requested: does the server support ignore_eos?"
        )
    if any(record.is_good and record.reported_completion_tokens is None for record in requests):
        warnings.append("the server does not report token counts: chunks are counted as tokens")
    elif not summary.itl_is_per_token:
        warnings.append(
            f"ITL is per chunk, not per token: {summary.completion_tokens:,} tokens arrived in"
            f" {summary.num_chunks:,} chunks; TPOT is per token"
        )
    return warnings
