"""The whole of a load: what was asked, of whom, every request, and the figures. JSON is exactly this."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from octavo.bench.serve.record import RequestRecord
from octavo.bench.serve.summary import Slo, Summary
from octavo.bench.serve.workload import Workload

BUSY_CLIENT = 0.8  # of a core: from here on, the client may be what is slow
LATE_SECONDS = 0.01


@dataclass(frozen=True)
class WorkloadFacts:
    """A workload in words that can be typed again."""

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
    """Was it the server that was measured, or we?"""

    cpu_fraction: float  # of one core, by this process, while the load ran
    late_p99: float  # seconds between when requests were due and when they were sent
    late_max: float


@dataclass(frozen=True)
class LoadReport:
    octavo: str  # the version that measured
    began: float  # Unix time
    url: str
    model: str
    prompts: str  # ids, text or chat
    workload: WorkloadFacts
    seed: int
    slo: Slo
    client: ClientFacts
    summary: Summary
    requests: tuple[RequestRecord, ...]

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before believing the figures."""
        return [*_faults_of_client(self.client), *_faults_of_answers(self.summary, self.requests)]

    def as_json(self) -> bytes:
        content = msgspec.to_builtins(self) | {"warnings": self.warnings}
        return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"

    @classmethod
    def of_json(cls, content: bytes) -> "LoadReport":
        return msgspec.json.decode(content, type=cls)


def _faults_of_client(client: ClientFacts) -> list[str]:
    faults = []
    if client.cpu_fraction > BUSY_CLIENT:
        faults.append(
            f"the client used {client.cpu_fraction:.0%} of a core: it may be what was slow; run it on another"
            " machine, or ask for less at once"
        )
    if client.late_p99 > LATE_SECONDS:
        faults.append(
            f"1 % of the requests were sent {1e3 * client.late_p99:.0f} ms or more after they were due: the"
            " machine of the client was busy"
        )
    return faults


def _faults_of_answers(summary: Summary, requests: Sequence[RequestRecord]) -> list[str]:
    faults = []
    if summary.num_failed:
        errors = Counter(record.error for record in requests if record.error is not None)
        ((often, times),) = errors.most_common(1)
        faults.append(
            f"{summary.num_failed} of {summary.num_requests} requests failed; {times} of them said: {often}"
        )
    if summary.num_short:
        faults.append(
            f"{summary.num_short} answers have fewer tokens than asked: does the server know ignore_eos?"
        )
    if any(record.is_good and record.told_completion_tokens is None for record in requests):
        faults.append("the server does not tell how many tokens an answer has: chunks were counted instead")
    elif not summary.itl_is_per_token:
        faults.append(
            f"ITL is per chunk, not per token: {summary.completion_tokens:,} tokens came in"
            f" {summary.num_chunks:,} chunks; TPOT is per token"
        )
    return faults
