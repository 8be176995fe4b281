"""Runs a workload against a server: `run_load(find_target(url), WORKLOADS["baseline"])`."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

import octavo
from octavo.bench.serve.answer import MeasuredAnswer
from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.connection import Pool, ServerAddress
from octavo.bench.serve.lengths import Fixed
from octavo.bench.serve.prompts import PlannedRequest, plan_requests
from octavo.bench.serve.record import LoadRecord, record_of
from octavo.bench.serve.report import ClientFacts, LoadReport, WorkloadFacts
from octavo.bench.serve.summary import Slo, distribution, summarise
from octavo.bench.serve.target import LoadTarget, advice
from octavo.bench.serve.workload import Workload
from octavo.errors import ConfigError, OctavoError

T = TypeVar("T")

REQUEST_SECONDS = 600.0
PROGRESS_SECONDS = 0.2  # between two progress reports
WARM_UP_TOKENS = 8
HALF_TICK = 0.0005  # of the event loop's clock


@dataclass(frozen=True)
class Progress:
    """Progress of a running load."""

    num_requests: int
    num_sent: int
    num_done: int
    num_failed: int
    num_chunks: int  # received so far, including those of unfinished answers
    seconds: float


Watch = Callable[[Progress], None]


def run_load(
    target: LoadTarget,
    workload: Workload,
    seed: int | None = None,
    *,
    slo: Slo | None = None,
    warm_up: bool = True,
    timeout: float = REQUEST_SECONDS,
    watch: Watch | None = None,
) -> LoadReport:
    """Run a workload and return its report after the last answer.

    Without a seed, choose a new one, so that no cache contains the prompts. A warm-up request, which is not
    measured, checks that the server accepts requests.
    """
    return run_on_fast_loop(
        load(target, workload, seed, slo=slo, warm_up=warm_up, timeout=timeout, watch=watch)
    )


def run_on_fast_loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def load(
    target: LoadTarget,
    workload: Workload,
    seed: int | None = None,
    *,
    slo: Slo | None = None,
    warm_up: bool = True,
    timeout: float = REQUEST_SECONDS,
    watch: Watch | None = None,
) -> LoadReport:
    """`run_load` for callers with a running event loop."""
    if workload.num_requests < 1:
        raise ConfigError("a load needs at least one request: raise --requests")
    seed = secrets.randbits(32) if seed is None else seed
    slo = slo or Slo()
    planned = plan_requests(workload, seed)
    _check_context(target, planned)
    try:
        pool = Pool(ServerAddress.of(target.transport))
    except OSError as error:
        raise OctavoError(f"cannot connect to {target.url} ({error}): is the server running?") from error
    driver = Driver(pool, target, planned, timeout)
    try:
        if warm_up:
            await _warm_up(pool, target, workload, seed, timeout)
        began = time.time()
        with CpuClock() as clock:
            records = await driver.run(workload, watch)
    finally:
        pool.close()
    return LoadReport(
        octavo=octavo.__version__,
        began=began,
        url=target.url,
        model=target.model,
        prompts=target.style,
        workload=WorkloadFacts.of(workload),
        seed=seed,
        slo=slo,
        client=client_facts(clock.fraction, records),
        summary=summarise(records, slo),
        requests=tuple(records),
    )


def _check_context(target: LoadTarget, planned: Sequence[PlannedRequest]) -> None:
    longest = max(one.prompt_tokens + one.output_tokens for one in planned)
    if target.context is not None and longest > target.context:
        raise ConfigError(
            f"the longest request has {longest:,} tokens, but the context of {target.model} is"
            f" {target.context:,}: shorten requests with --prompt, --output or --shared"
        )


class CpuClock:
    """Measures the fraction of a core that this process uses."""

    fraction: float = 0.0

    def __enter__(self) -> "CpuClock":
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._start
        self.fraction = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)


def client_facts(cpu_fraction: float, records: Sequence[LoadRecord]) -> ClientFacts:
    late = distribution(record.sent_at - record.due_at for record in records)
    assert late is not None
    return ClientFacts(cpu_fraction, late.p99, late.max)


class Driver:
    """Sends the requests when they are due and records the results. For a single run."""

    def __init__(
        self, pool: Pool, target: LoadTarget, planned: Sequence[PlannedRequest], timeout: float
    ) -> None:
        self._pool = pool
        self._planned = planned
        self._timeout = timeout
        # Encoded in advance: encoding a long prompt takes time.
        self._requests = [as_http(target, one) for one in planned]
        self._in_flight: dict[int, MeasuredAnswer] = {}
        self._records: list[LoadRecord] = []
        self._num_chunks = 0  # of finished answers
        self._started_at = 0.0

    async def run(self, workload: Workload, watch: Watch | None) -> list[LoadRecord]:
        """Send all requests and return their records in the order of the plan."""
        watching = asyncio.create_task(self._report_progress(watch)) if watch is not None else None
        self._started_at = time.perf_counter()
        try:
            if isinstance(workload.arrivals, Closed):
                remaining = iter(self._planned)
                workers = min(workload.arrivals.concurrency, len(self._planned))
                await _all(self._ask_in_turn(remaining) for _ in range(workers))
            else:
                await _all(self._ask_when_due(one) for one in self._planned)
        finally:
            if watching is not None:
                watching.cancel()
        if watch is not None:
            watch(self._progress())
        return sorted(self._records, key=lambda record: record.number)

    async def _ask_in_turn(self, remaining: Iterator[PlannedRequest]) -> None:
        for one in remaining:
            await self._ask(one, time.perf_counter())

    async def _ask_when_due(self, one: PlannedRequest) -> None:
        assert one.at is not None
        due_at = self._started_at + one.at
        # The loop rounds to milliseconds and uses a cached time. Sleep again rather than send early.
        while (left := due_at - time.perf_counter()) > 0:
            await asyncio.sleep(left + HALF_TICK)
        await self._ask(one, due_at)

    async def _ask(self, one: PlannedRequest, due_at: float) -> None:
        answer = MeasuredAnswer(time.perf_counter())
        self._in_flight[one.number] = answer
        await ask(self._pool, self._requests[one.number], answer, self._timeout)
        del self._in_flight[one.number]
        self._num_chunks += len(answer.chunk_times)
        self._records.append(record_of(one, answer, due_at=due_at, started_at=self._started_at))

    async def _report_progress(self, watch: Watch) -> None:
        while True:
            watch(self._progress())
            await asyncio.sleep(PROGRESS_SECONDS)

    def _progress(self) -> Progress:
        open_chunks = sum(len(answer.chunk_times) for answer in self._in_flight.values())
        return Progress(
            num_requests=len(self._planned),
            num_sent=len(self._records) + len(self._in_flight),
            num_done=len(self._records),
            num_failed=sum(not record.is_good for record in self._records),
            num_chunks=self._num_chunks + open_chunks,
            seconds=time.perf_counter() - self._started_at,
        )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


async def ask(pool: Pool, request: bytes, answer: MeasuredAnswer, timeout: float) -> None:
    """Send a request and fill in the answer; failures become its `error`."""
    try:
        async with asyncio.timeout(timeout):
            await pool.ask(request, answer)
    except TimeoutError:
        answer.error = f"the answer took longer than {timeout:g} s"
    except OSError as error:
        answer.error = f"connection lost: {error}"
    if answer.done_at is None:
        answer.done_at = time.perf_counter()


def as_http(target: LoadTarget, planned: PlannedRequest) -> bytes:
    body = target.body(planned)
    headers = {
        "host": target.transport.address,
        "accept": "text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **target.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {target.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def _warm_up(pool: Pool, target: LoadTarget, workload: Workload, seed: int, timeout: float) -> None:
    """Send one request with a prompt of the usual length, other tokens and a short answer."""
    alone = workload.scaled(
        num_requests=1, arrivals=Closed(1), output=Fixed(min(WARM_UP_TOKENS, workload.output.quantile(0.5)))
    )
    (planned,) = plan_requests(alone, -1 - seed)
    answer = MeasuredAnswer(time.perf_counter())
    await ask(pool, as_http(target, planned), answer, timeout)
    if answer.status is None:
        raise OctavoError(f"no response from {target.url} ({answer.error}): is the server running?")
    if answer.status != 200:
        raise OctavoError(advice(answer.status, answer.error or "", target))
    if answer.error is not None:
        raise OctavoError(f"the warm-up request failed: {answer.error}; see the server log")
