"""The summary of a load, computed from its records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.bench.serve.record import LoadRecord


@dataclass(frozen=True)
class Slo:
    """Service-level objective: upper limits for each request, in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None  # mean of the request
    itl: float | None = None  # 99th percentile within the request
    e2e: float | None = None

    @property
    def is_given(self) -> bool:
        return self != Slo()

    def is_met(self, record: LoadRecord) -> bool:
        if not record.is_good:
            return False
        gaps = record.itl
        measured = (
            (self.ttft, record.ttft),
            (self.tpot, record.tpot or 0.0),
            (self.itl, percentile(gaps, 99) if gaps and self.itl is not None else 0.0),
            (self.e2e, record.e2e),
        )
        return all(limit is None or value <= limit for limit, value in measured)


@dataclass(frozen=True)
class Distribution:
    """Statistics of a measure, in seconds."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Summary:
    num_requests: int
    num_failed: int
    seconds: float  # from sending the first request to the end of the last answer
    prompt_tokens: int  # of successful requests, like all following fields
    cached_tokens: int | None  # None: not reported by the server
    completion_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    prefill_tokens_per_second: float | None  # median over requests of prompt tokens / TTFT
    decode_tokens_per_second: float | None  # 1 / median TPOT
    ttft: Distribution | None  # None: no samples
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    itl_is_per_token: bool  # False: a chunk had several tokens, or a token had no chunk
    num_chunks: int
    num_short: int  # answers with fewer tokens than requested
    num_within_slo: int | None  # None: no SLO was given
    goodput: float | None  # requests per second within the SLO
    drafted_tokens: int = 0  # by speculative decoding
    accepted_tokens: int = 0  # of these

    @property
    def cache_hit_rate(self) -> float | None:
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def acceptance(self) -> float | None:
        """The fraction of drafted tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def slo_attainment(self) -> float | None:
        """The fraction of all requests, including failed ones, that met the SLO."""
        if self.num_within_slo is None:
            return None
        return self.num_within_slo / self.num_requests if self.num_requests else 0.0


def summarise(records: Sequence[LoadRecord], slo: Slo) -> Summary:
    good = [record for record in records if record.is_good]
    begin = min((record.sent_at for record in records), default=0.0)
    seconds = max((record.ended_at for record in records), default=0.0) - begin
    prompt_tokens = sum(record.num_prompt_tokens for record in good)
    completion_tokens = sum(record.completion_tokens for record in good)
    cached = [record.reported_cached_tokens for record in good if record.reported_cached_tokens is not None]
    num_chunks = sum(len(record.chunk_times) for record in good)
    within = sum(map(slo.is_met, records)) if slo.is_given else None
    tpot = distribution(each for record in good if (each := record.tpot) is not None)
    prefill = distribution(record.num_prompt_tokens / record.ttft for record in good if record.ttft > 0)
    return Summary(
        num_requests=len(records),
        num_failed=len(records) - len(good),
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        completion_tokens=completion_tokens,
        drafted_tokens=sum(record.reported_drafted_tokens or 0 for record in good),
        accepted_tokens=sum(record.reported_accepted_tokens or 0 for record in good),
        requests_per_second=_over(len(good), seconds),
        output_tokens_per_second=_over(completion_tokens, seconds),
        total_tokens_per_second=_over(prompt_tokens + completion_tokens, seconds),
        prefill_tokens_per_second=prefill.p50 if prefill is not None else None,
        decode_tokens_per_second=1 / tpot.p50 if tpot is not None and tpot.p50 > 0 else None,
        ttft=distribution(record.ttft for record in good),
        tpot=tpot,
        itl=distribution(gap for record in good for gap in record.itl),
        e2e=distribution(record.e2e for record in good),
        itl_is_per_token=num_chunks == completion_tokens,
        num_chunks=num_chunks,
        num_short=sum(record.completion_tokens < record.output_tokens for record in good),
        num_within_slo=within,
        goodput=None if within is None else _over(within, seconds),
    )


def distribution(values: Iterable[float]) -> Distribution | None:
    array = np.fromiter(values, dtype=np.float64)
    if not array.size:
        return None
    low, p50, p90, p95, p99, high = np.percentile(array, (0, 50, 90, 95, 99, 100)).tolist()
    return Distribution(array.size, float(array.mean()), low, p50, p90, p95, p99, high)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile with linear interpolation, as numpy does."""
    return float(np.percentile(values, percent))


def _over(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
