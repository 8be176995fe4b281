"""A process that can be killed gives the verdicts, whatever the grammar does."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec
import pytest

from octavo.errors import GrammarError, GrammarNotChecked, TooManyGrammars
from octavo.fairness.tenant import Tenant
from octavo.grammar import check_process
from octavo.grammar.checker import MAX_ATTEMPTS, MAX_WAITING, NOT_CHECKED, GrammarChecker, Verdict
from octavo.grammar.vocabulary import byte_vocabulary
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.server.http.errors import as_api_error
from patience import HANG_SECONDS
from unit.fairness.crowd import Clock, tenants

GOOD = GrammarSpec(GrammarKind.REGEX, "[a-z]+")
BAD = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"uniqueItems": true}')


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


def problem(checker: GrammarChecker, spec: GrammarSpec) -> str | None:
    error = checker.submit(spec).exception(timeout=HANG_SECONDS)
    assert error is None or isinstance(error, GrammarError), error
    return None if error is None else str(error)


def test_verdicts_do_not_depend_on_order(checker: GrammarChecker) -> None:
    for _ in range(2):  # the second time from the cache
        assert problem(checker, GOOD) is None
        assert "uniqueItems" in (problem(checker, BAD) or "")
    checker.check(GOOD)
    with pytest.raises(GrammarError, match="uniqueItems"):
        checker.check(BAD)


def test_concurrent_checks_get_their_own_verdicts(checker: GrammarChecker) -> None:
    specs = [GrammarSpec(GrammarKind.REGEX, f"a{{{n}}}" if n % 2 else f"(a{n}") for n in range(20)]
    futures = [checker.submit(spec) for spec in specs for _ in range(3)]
    assert [future.exception(60) is None for future in futures] == [
        n % 2 == 1 for n in range(20) for _ in range(3)
    ]


def test_known_verdicts_are_cached(checker: GrammarChecker) -> None:
    problem(checker, GOOD)
    assert checker.submit(GOOD).done()


def test_a_dead_process_is_replaced(checker: GrammarChecker) -> None:
    problem(checker, GOOD)
    process = checker._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) is None


@pytest.mark.parametrize("num_deaths", [1, MAX_ATTEMPTS])
def test_a_check_is_repeated_if_the_process_dies_meanwhile(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch, num_deaths: int
) -> None:
    outcomes = [b""] * num_deaths

    def query_once(spec: GrammarSpec) -> Verdict:
        return msgspec.json.decode(outcomes.pop(), type=Verdict) if outcomes else query(spec)

    query = checker._query_once
    monkeypatch.setattr(checker, "_query_once", query_once)
    spec = GrammarSpec(GrammarKind.REGEX, f"dies{num_deaths}")
    assert problem(checker, spec) == (None if num_deaths < MAX_ATTEMPTS else NOT_CHECKED)
    assert problem(checker, spec) is None, "a lost verdict must not be cached"


@pytest.mark.parametrize("how", ["time", "memory", "crash"])
def test_a_killed_child_counts_as_too_complex(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The failure happens in the forked child, so that this process survives."""

    def compile_forever(*_: object) -> None:
        if how == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        kept = []
        while True:
            if how == "memory":
                kept.append(bytearray(64 << 20))

    monkeypatch.setattr(check_process, "_compile", compile_forever)
    if how == "memory":
        monkeypatch.setattr(check_process, "CPU_SECONDS", 20.0)
        monkeypatch.setattr(check_process, "WALL_SECONDS", 600.0)
        monkeypatch.setattr(check_process, "MEMORY_BYTES", address_space() + (256 << 20))
    verdict = check_process._verdict(GOOD, byte_vocabulary())
    assert verdict == Verdict(check_process.TOO_COMPLEX)


def test_a_timeout_of_a_busy_machine_is_not_a_final_verdict(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_process, "_compile", lambda *_: time.sleep(3600))
    monkeypatch.setattr(check_process, "WALL_SECONDS", 0.1)
    unknown = check_process._verdict(GOOD, byte_vocabulary())
    assert unknown == Verdict(NOT_CHECKED, is_final=False)

    verdicts = [unknown, Verdict()]
    monkeypatch.setattr(checker, "_query_process", lambda _: verdicts.pop(0))
    spec = GrammarSpec(GrammarKind.REGEX, "nobody had time")
    assert problem(checker, spec) == NOT_CHECKED
    assert problem(checker, spec) is None, "the first verdict must not be cached"


# -- fairness, with verdicts that take a second of a clock that stands still otherwise ---------------------


class Gate:
    """Answers in place of the check process. A check waits until the test lets it through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.order: list[str] = []  # of grammars whose checks have started
        self.seconds: dict[str, float] = {}  # by the first letter of a grammar; otherwise 1
        self._started = threading.Semaphore(0)
        self._may_end = threading.Semaphore(0)
        self.checker = GrammarChecker(self.clock)
        monkeypatch.setattr(self.checker, "_query_process", self._query)

    def _query(self, spec: GrammarSpec) -> Verdict:
        self.order.append(spec.text)
        self._started.release()
        assert self._may_end.acquire(timeout=HANG_SECONDS)
        self.clock.now += self.seconds.get(spec.text[0], 1.0)
        return Verdict()

    def wait_for_start(self) -> None:
        assert self._started.acquire(timeout=HANG_SECONDS)

    def let_through(self, num_checks: int) -> None:
        for _ in range(num_checks):
            self._may_end.release()

    def submit(self, tenant: Tenant, number: int) -> "Future[None]":
        return self.checker.submit(GrammarSpec(GrammarKind.REGEX, f"{tenant.name}{number}"), tenant)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.let_through(10 * MAX_WAITING)
    gate.checker.close()


def test_a_newcomers_check_is_the_next(gate: Gate) -> None:
    flooding, other = tenants(1, 1)
    flood = [gate.submit(flooding, number) for number in range(20)]
    gate.wait_for_start()
    late = gate.submit(other, 0)
    gate.let_through(21)
    for future in (*flood, late):
        future.result(HANG_SECONDS)
    assert gate.order[:3] == ["a0", "b0", "a1"]


def test_checks_are_shared_by_weight_and_by_the_time_they_take(gate: Gate) -> None:
    crowd = tenants(1, 2, 1)
    gate.seconds = {"c": 5.0}  # slow grammars
    first = gate.submit(crowd[0], 0)
    gate.wait_for_start()  # everything else waits
    futures = [gate.submit(tenant, number) for number in range(1, 41) for tenant in crowd]
    gate.let_through(121)
    for future in (first, *futures):
        future.result(HANG_SECONDS)
    started = gate.order[: 1 + 30 + 2]
    seconds = {
        name: sum(gate.seconds.get(one[0], 1.0) for one in started if one[0] == name) for name in "abc"
    }
    total = sum(seconds.values())
    for tenant in crowd:
        assert seconds[tenant.name] == pytest.approx(total * tenant.fraction, abs=5.0)


def test_cancelled_checks_never_run_and_release_their_room(gate: Gate) -> None:
    flooding, _ = tenants(1, 1)
    running = gate.submit(flooding, 0)
    gate.wait_for_start()
    waiting = [gate.submit(flooding, number) for number in range(1, 100)]
    assert not running.cancel()
    assert all(future.cancel() for future in waiting)
    assert (gate.checker._room.num_used, len(gate.checker._queue)) == (1, 0)
    last = gate.submit(flooding, 100)
    gate.let_through(2)
    last.result(HANG_SECONDS)
    assert gate.order == ["a0", "a100"]
    assert gate.checker._room.num_used == 0


def test_a_cancelled_task_cancels_its_check(gate: Gate) -> None:
    """Generation waits for a check like this, and is cancelled when its client disconnects."""
    (tenant,) = tenants(1)

    async def main() -> None:
        first = gate.submit(tenant, 0)
        await asyncio.to_thread(gate.wait_for_start)

        async def check() -> None:
            await asyncio.wrap_future(gate.submit(tenant, 1))

        task = asyncio.create_task(check())
        while not len(gate.checker._queue):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert len(gate.checker._queue) == 0
        gate.let_through(2)
        await asyncio.wrap_future(first)
        await asyncio.wrap_future(gate.submit(tenant, 2))

    asyncio.run(main())
    assert gate.order == ["a0", "a2"]


def test_a_flood_is_rejected_but_a_tenant_without_checks_is_not(gate: Gate) -> None:
    crowd = [Tenant(name, 1.0, 0.001) for name in "abc"]  # among a thousand others
    futures = [gate.submit(crowd[0], number) for number in range(2 * MAX_WAITING)]
    rejected = [future for future in futures if future.done()]
    assert len(futures) - len(rejected) == MAX_WAITING // 2
    for future in rejected:
        error = future.exception(0)
        assert isinstance(error, TooManyGrammars)
        answer = as_api_error(error, "")
        assert (answer.status, answer.code, answer.kind) == (429, "grammars_busy", "rate_limit_error")
        assert int(answer.headers["retry-after"]) >= 1
    for tenant in crowd[1:]:
        assert not gate.submit(tenant, 0).done()
    assert as_api_error(GrammarNotChecked(NOT_CHECKED), "").status == 503


def test_requests_that_wait_for_the_same_grammar_share_a_verdict(gate: Gate) -> None:
    spec = GrammarSpec(GrammarKind.REGEX, "same")
    futures = [gate.checker.submit(spec, tenant) for tenant in tenants(1, 1, 1) for _ in range(3)]
    gate.let_through(1)
    for future in futures:
        future.result(HANG_SECONDS)
    assert gate.order == ["same"]


def test_checks_end_without_a_verdict_when_the_checker_is_closed() -> None:
    closed = GrammarChecker()
    closed.close()
    closed.close()
    with pytest.raises(GrammarNotChecked):
        closed.check(GOOD)


def address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
