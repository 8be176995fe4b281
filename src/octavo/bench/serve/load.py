"""Run a workload against a server: `run_load(find_target(url), WORKLOADS["baseline"])`."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

import octavo
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.connection import Address, Pool
from octavo.bench.serve.lengths import Fixed
from octavo.bench.serve.prompts import PlannedRequest, plan_requests
from octavo.bench.serve.record import RequestRecord, record_of
from octavo.bench.serve.report import ClientFacts, LoadReport, WorkloadFacts
from octavo.bench.serve.summary import Slo, distribution, summarise
from octavo.bench.serve.target import Target, advice
from octavo.bench.serve.workload import Workload
from octavo.errors import ConfigError, OctavoError

T = TypeVar("T")

REQUEST_SECONDS = 600.0
LOOK_SECONDS = 0.2  # between two looks at the progress
WARM_UP_TOKENS = 8
HALF_TICK = 0.0005  # of the loop's clock


@dataclass(frozen=True)
class Progress:
    """Of a load under way."""

    num_requests: int
    num_sent: int
    num_done: int
    num_failed: int
    num_chunks: int  # that have come, of answers under way too
    seconds: float


Watch = Callable[[Progress], None]


def run_load(
    target: Target,
    workload: Workload,
    seed: int | None = None,
    *,
    slo: Slo | None = None,
    warm_up: bool = True,
    timeout: float = REQUEST_SECONDS,
    watch: Watch | None = None,
) -> LoadReport:
    """Blocks until the last answer. Without a seed there is a new one, so that no cache knows the prompts.

    The first request is not measured: it shows whether the server can be asked at all, and warms it.
    """
    return run_on_fast_loop(
        load(target, workload, seed, slo=slo, warm_up=warm_up, timeout=timeout, watch=watch)
    )


def run_on_fast_loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def load(
    target: Target,
    workload: Workload,
    seed: int | None = None,
    *,
    slo: Slo | None = None,
    warm_up: bool = True,
    timeout: float = REQUEST_SECONDS,
    watch: Watch | None = None,
) -> LoadReport:
    """`run_load` for who has a loop already."""
    if workload.num_requests < 1:
        raise ConfigError("a load has at least one request")
    seed = secrets.randbits(32) if seed is None else seed
    slo = slo or Slo()
    planned = plan_requests(workload, seed)
    _check_context(target, planned)
    try:
        pool = Pool(Address.of(target.transport))
    except OSError as error:
        raise OctavoError(f"{target.url} does not answer ({error}): is the server running?") from error
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


def _check_context(target: Target, planned: Sequence[PlannedRequest]) -> None:
    longest = max(one.prompt_tokens + one.output_tokens for one in planned)
    if target.context is not None and longest > target.context:
        raise ConfigError(
            f"the longest request has {longest:,} tokens, and {target.model} a context of {target.context:,}:"
            " --prompt, --output and --shared make requests shorter"
        )


class CpuClock:
    """How much of a core this process used."""

    fraction: float = 0.0

    def __enter__(self) -> "CpuClock":
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._began
        self.fraction = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)


def client_facts(cpu_fraction: float, records: Sequence[RequestRecord]) -> ClientFacts:
    late = distribution(record.sent_at - record.due_at for record in records)
    assert late is not None
    return ClientFacts(cpu_fraction, late.p99, late.max)


class Driver:
    """Sends the requests when they are due and keeps what became of them. Runs once."""

    def __init__(self, pool: Pool, target: Target, planned: Sequence[PlannedRequest], timeout: float) -> None:
        self._pool = pool
        self._planned = planned
        self._timeout = timeout
        # Written before the clock runs: encoding a long prompt takes time.
        self._requests = [as_http(target, one) for one in planned]
        self._under_way: dict[int, Answer] = {}
        self._records: list[RequestRecord] = []
        self._num_chunks = 0  # of answers that have ended
        self._started_at = 0.0

    async def run(self, workload: Workload, watch: Watch | None) -> list[RequestRecord]:
        """In the order of the plan."""
        watching = asyncio.create_task(self._look(watch)) if watch is not None else None
        self._started_at = time.perf_counter()
        try:
            if isinstance(workload.arrivals, Closed):
                turns = iter(self._planned)
                workers = min(workload.arrivals.concurrency, len(self._planned))
                await _all(self._take_turns(turns) for _ in range(workers))
            else:
                await _all(self._ask_when_due(one) for one in self._planned)
        finally:
            if watching is not None:
                watching.cancel()
        if watch is not None:
            watch(self._progress())
        return sorted(self._records, key=lambda record: record.number)

    async def _take_turns(self, turns: Iterator[PlannedRequest]) -> None:
        for one in turns:
            await self._ask(one, time.perf_counter())

    async def _ask_when_due(self, one: PlannedRequest) -> None:
        assert one.at is not None
        due_at = self._started_at + one.at
        # The loop counts in milliseconds, to the nearest, from a time that it read a while ago. Never early:
        while (left := due_at - time.perf_counter()) > 0:
            await asyncio.sleep(left + HALF_TICK)
        await self._ask(one, due_at)

    async def _ask(self, one: PlannedRequest, due_at: float) -> None:
        answer = Answer(time.perf_counter())
        self._under_way[one.number] = answer
        await ask(self._pool, self._requests[one.number], answer, self._timeout)
        del self._under_way[one.number]
        self._num_chunks += len(answer.chunk_times)
        self._records.append(record_of(one, answer, due_at=due_at, started_at=self._started_at))

    async def _look(self, watch: Watch) -> None:
        while True:
            watch(self._progress())
            await asyncio.sleep(LOOK_SECONDS)

    def _progress(self) -> Progress:
        open_chunks = sum(len(answer.chunk_times) for answer in self._under_way.values())
        return Progress(
            num_requests=len(self._planned),
            num_sent=len(self._records) + len(self._under_way),
            num_done=len(self._records),
            num_failed=sum(not record.is_good for record in self._records),
            num_chunks=self._num_chunks + open_chunks,
            seconds=time.perf_counter() - self._started_at,
        )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


async def ask(pool: Pool, request: bytes, answer: Answer, timeout: float) -> None:
    """Whatever happens, the answer says it."""
    try:
        async with asyncio.timeout(timeout):
            await pool.ask(request, answer)
    except TimeoutError:
        answer.error = f"no end within {timeout:g} s"
    except OSError as error:
        answer.error = f"the connection was lost: {error}"
    if answer.done_at is None:
        answer.done_at = time.perf_counter()


def as_http(target: Target, planned: PlannedRequest) -> bytes:
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


async def _warm_up(pool: Pool, target: Target, workload: Workload, seed: int, timeout: float) -> None:
    """One request as long as the others, with tokens of its own and a short answer."""
    alone = workload.scaled(
        num_requests=1, arrivals=Closed(1), output=Fixed(min(WARM_UP_TOKENS, workload.output.quantile(0.5)))
    )
    (planned,) = plan_requests(alone, -1 - seed)
    answer = Answer(time.perf_counter())
    await ask(pool, as_http(target, planned), answer, timeout)
    if answer.status is None:
        raise OctavoError(f"{target.url} does not answer ({answer.error}): is the server running?")
    if answer.status != 200:
        raise OctavoError(advice(answer.status, answer.error or "", target))
    if answer.error is not None:
        raise OctavoError(f"the first request failed: {answer.error}; the log of the server should say why")
