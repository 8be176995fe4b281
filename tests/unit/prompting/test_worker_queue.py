"""A worker queue is fair between tenants, and a cancelled job does not run."""

import asyncio
from typing import cast

import pytest

from octavo.fairness.turns import FairTurns
from octavo.prompting.prompter import Prompter, WorkerQueue
from unit.fairness.crowd import Clock, tenants

FLOODING, OTHER = tenants(1, 1)


class FakeWorkers:
    """Stands in for `Prompter.fork` and its workers. A job takes a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.jobs: list[bytes] = []
        self.num_killed = self.num_forked = 0
        self.is_alive = True

    async def fork(self, _: float) -> "FakeWorkers":
        self.num_forked += 1
        return self

    async def run(self, job: bytes) -> bytes:
        self.jobs.append(job)
        self.clock.now += 1
        await asyncio.sleep(0)
        return job

    def kill(self) -> None:
        self.num_killed += 1


def queue_of(workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch) -> WorkerQueue:
    queue = WorkerQueue(cast(Prompter, workers), 1.0)
    monkeypatch.setattr(queue, "_turns", FairTurns(workers.clock))
    return queue


def test_a_flood_of_jobs_delays_another_tenant_by_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeWorkers()

    async def main() -> None:
        queue = queue_of(workers, monkeypatch)
        flood = [asyncio.create_task(queue.run(FLOODING, b"flood")) for _ in range(20)]
        while not workers.jobs:
            await asyncio.sleep(0)
        for _ in range(3):
            num_before = len(workers.jobs)
            assert await queue.run(OTHER, b"other") == b"other"
            assert workers.jobs[num_before : num_before + 2].count(b"other") == 1
        await asyncio.gather(*flood)

    asyncio.run(main())
    assert (workers.jobs.count(b"flood"), workers.num_killed) == (20, 0)


def test_cancelled_jobs_do_not_run_and_a_started_one_kills_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = FakeWorkers()

    async def main() -> None:
        queue = queue_of(workers, monkeypatch)
        started, waiting, last = (asyncio.create_task(queue.run(OTHER, job)) for job in (b"1", b"2", b"3"))
        await asyncio.sleep(0)
        assert workers.jobs == [b"1"]
        started.cancel()
        waiting.cancel()
        assert await last == b"3"
        await asyncio.wait((started, waiting))

    asyncio.run(main())
    assert (workers.jobs, workers.num_killed) == ([b"1", b"3"], 1)


def test_a_worker_that_died_while_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeWorkers()

    async def main() -> None:
        queue = queue_of(workers, monkeypatch)
        for workers.is_alive in (True, True, False, True):
            assert await queue.run(OTHER, b"job") == b"job"

    asyncio.run(main())
    assert (workers.num_forked, workers.num_killed) == (2, 1)
