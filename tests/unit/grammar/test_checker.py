"""A process that can be killed gives the verdicts, whatever the grammar does."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from octavo.errors import GrammarError
from octavo.grammar import check_process
from octavo.grammar.checker import NOT_CHECKED, GrammarChecker, Verdict
from octavo.grammar.vocabulary import byte_vocabulary
from octavo.protocol import GrammarKind, GrammarSpec

GOOD = GrammarSpec(GrammarKind.REGEX, "[a-z]+")
BAD = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"uniqueItems": true}')


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


def problem(checker: GrammarChecker, spec: GrammarSpec) -> str | None:
    error = checker.submit(spec).exception(timeout=60)
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
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) == NOT_CHECKED
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) is None


def test_lost_verdicts_are_not_cached(checker: GrammarChecker) -> None:
    """The grammar whose verdict was lost above is accepted by the next process."""
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) is None


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


def address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
