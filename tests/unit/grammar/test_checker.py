"""Verdicts come from a process that can be killed, and they come whatever the grammar does."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from octavo.errors import GrammarError
from octavo.grammar import check_process
from octavo.grammar.checker import LOST, GrammarChecker, Verdict
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


def test_good_and_bad_in_any_order(checker: GrammarChecker) -> None:
    for _ in range(2):  # the second time from memory
        assert problem(checker, GOOD) is None
        assert "uniqueItems" in (problem(checker, BAD) or "")
    checker.check(GOOD)
    with pytest.raises(GrammarError, match="uniqueItems"):
        checker.check(BAD)


def test_many_at_once_have_one_verdict_each(checker: GrammarChecker) -> None:
    specs = [GrammarSpec(GrammarKind.REGEX, f"a{{{n}}}" if n % 2 else f"(a{n}") for n in range(20)]
    futures = [checker.submit(spec) for spec in specs for _ in range(3)]
    assert [future.exception(60) is None for future in futures] == [
        n % 2 == 1 for n in range(20) for _ in range(3)
    ]


def test_known_verdicts_ask_nobody(checker: GrammarChecker) -> None:
    problem(checker, GOOD)
    assert checker.submit(GOOD).done()


def test_a_process_that_died_is_replaced(checker: GrammarChecker) -> None:
    problem(checker, GOOD)
    process = checker._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) == LOST
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) is None


def test_lost_verdicts_are_not_remembered_as_bad(checker: GrammarChecker) -> None:
    """See above: the same grammar was accepted by the next process."""
    assert problem(checker, GrammarSpec(GrammarKind.REGEX, "new")) is None


@pytest.mark.parametrize("how", ["time", "memory", "crash"])
def test_a_child_that_is_ended_by_the_kernel_is_a_verdict(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """In the forked child, so that this process lives on."""

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


def test_a_machine_without_time_for_a_grammar_says_nothing_against_it(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_process, "_compile", lambda *_: time.sleep(3600))
    monkeypatch.setattr(check_process, "WALL_SECONDS", 0.1)
    unknown = check_process._verdict(GOOD, byte_vocabulary())
    assert unknown == Verdict(LOST, is_final=False)

    verdicts = [unknown, Verdict()]
    monkeypatch.setattr(checker, "_fetch", lambda _: verdicts.pop(0))
    spec = GrammarSpec(GrammarKind.REGEX, "nobody had time")
    assert problem(checker, spec) == LOST
    assert problem(checker, spec) is None, "the first was not remembered"


def address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
