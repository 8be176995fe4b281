"""Measuring, on a machine whose limits are scripted."""

from collections.abc import Iterator, Sequence

import pytest

from octavo.bench.measure import MOST_TURNS, Limits, Measurement, Run, Turn, Work, measure

FAST, SLOW = 100.0, 25.0  # peaks


class ScriptedMachine:
    """Shows the peaks it is given, the last one for ever."""

    def __init__(self, peaks: Sequence[float], bandwidth: float = 10.0) -> None:
        self._peaks = list(peaks)
        self._bandwidth = bandwidth
        self.best_peak = FAST

    def probe(self) -> Limits:
        peak = self._peaks.pop(0) if len(self._peaks) > 1 else self._peaks[0]
        return Limits(self._bandwidth, peak)


def counting(log: list[str], name: str, seconds: float = 1.0) -> Iterator[Run]:
    while True:
        log.append(name)
        yield Run(seconds, Work(5.0, 0.0))


def test_contestants_take_turns_and_each_is_first_by_rotation() -> None:
    log: list[str] = []
    contestants = [counting(log, name).__next__ for name in "ab"]
    measured = measure(ScriptedMachine([FAST]), contestants, num_turns=3, patience=0.0)
    assert "".join(log) == "abbaab"
    assert (len(measured.turns), measured.num_dropped, measured.is_throttled) == (3, 0, False)


def test_turns_beside_a_throttled_probe_are_dropped_and_taken_again() -> None:
    log: list[str] = []
    # The first turn begins fast and ends slow; then a slow start is waited for; then all is well.
    machine = ScriptedMachine([FAST, SLOW, SLOW, FAST])
    measured = measure(machine, [counting(log, "a").__next__], num_turns=2, patience=60.0)
    assert (len(measured.turns), measured.num_dropped, len(log)) == (2, 1, 3)
    assert all(turn.lowest_peak == FAST for turn in measured.turns)
    assert not measured.is_throttled


def test_without_patience_there_is_what_there_is_and_it_says_so() -> None:
    log: list[str] = []
    measured = measure(ScriptedMachine([SLOW]), [counting(log, "a").__next__], num_turns=4, patience=0.0)
    assert (len(measured.turns), measured.num_dropped, measured.is_throttled) == (4, 0, True)


def test_a_machine_that_fails_within_every_turn_ends_all_the_same() -> None:
    log: list[str] = []
    machine = ScriptedMachine([FAST, SLOW] * 50)
    measured = measure(machine, [counting(log, "a").__next__], num_turns=2, patience=60.0)
    assert len(log) == MOST_TURNS * 2
    assert measured.is_throttled


def test_what_does_without_amx_does_not_care() -> None:
    log: list[str] = []
    machine = ScriptedMachine([SLOW])
    measured = measure(machine, [counting(log, "a").__next__], num_turns=3, patience=60.0, needs_amx=False)
    assert (len(log), measured.num_dropped, measured.is_throttled) == (3, 0, False)


@pytest.mark.parametrize(
    ("work", "peak", "seconds", "is_memory_bound"),
    [
        (Work(20.0, 100.0), 100.0, 2.0, True),
        (Work(20.0, 400.0), 100.0, 4.0, False),
        (Work(20.0, 400.0), 0.0, 2.0, True),  # no AMX: the memory is the only limit known
    ],
)
def test_the_roofline_is_the_higher_of_two(
    work: Work, peak: float, seconds: float, is_memory_bound: bool
) -> None:
    limits = Limits(10.0, peak)
    assert work.least_seconds(limits) == seconds
    assert work.is_memory_bound(limits) == is_memory_bound


def test_figures_are_medians_of_pairs() -> None:
    """Every turn is twice as slow as the one before, machine and contestants alike: pairs do not notice."""
    work = Work(10.0, 0.0)
    turns = tuple(
        Turn(
            (Run(2.0 * slow, work, {"gemm": 1.0 * slow}), Run(6.0 * slow, work)),
            (Limits(10.0 / slow, 0.0), Limits(10.0 / slow, 0.0)),
            0.0,
        )
        for slow in (1, 2, 4)
    )
    measured = Measurement(turns, 0, is_throttled=False)
    assert measured.ratio(1, 0) == 3.0
    assert measured.fraction(lambda run: run.seconds) == 0.5
    assert measured.fraction(lambda run: sum(run.kernels.values())) == 1.0
    assert measured.share("gemm") == 0.5
    assert measured.seconds() == 4.0
