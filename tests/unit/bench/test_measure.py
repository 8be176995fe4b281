"""Measurements on a machine with scripted limits."""

from collections.abc import Iterator, Sequence

import pytest

from octavo.bench.measure import MAX_TURNS, MachineLimits, Measurement, MinimumWork, Run, Turn, measure

FAST, SLOW = 100.0, 25.0  # peaks


class ScriptedMachine:
    """Reports the given peaks in order, and then the last one forever."""

    def __init__(self, peaks: Sequence[float], bandwidth: float = 10.0) -> None:
        self._peaks = list(peaks)
        self._bandwidth = bandwidth
        self.best_peak = FAST

    def probe(self) -> MachineLimits:
        peak = self._peaks.pop(0) if len(self._peaks) > 1 else self._peaks[0]
        return MachineLimits(self._bandwidth, peak)


def counting(log: list[str], name: str, seconds: float = 1.0) -> Iterator[Run]:
    while True:
        log.append(name)
        yield Run(seconds, MinimumWork(5.0, 0.0))


def test_candidates_take_turns_in_rotating_order() -> None:
    log: list[str] = []
    candidates = [counting(log, name).__next__ for name in "ab"]
    measured = measure(ScriptedMachine([FAST]), candidates, num_turns=3, max_wait=0.0)
    assert "".join(log) == "abbaab"
    assert (len(measured.turns), measured.num_dropped, measured.is_throttled) == (3, 0, False)


def test_turns_with_a_throttled_probe_are_dropped_and_repeated() -> None:
    log: list[str] = []
    # The first turn begins fast and ends slow; the second waits for a slow start; the rest are fast.
    machine = ScriptedMachine([FAST, SLOW, SLOW, FAST])
    measured = measure(machine, [counting(log, "a").__next__], num_turns=2, max_wait=60.0)
    assert (len(measured.turns), measured.num_dropped, len(log)) == (2, 1, 3)
    assert all(turn.lowest_peak == FAST for turn in measured.turns)
    assert not measured.is_throttled


def test_without_waiting_the_result_is_marked_as_throttled() -> None:
    log: list[str] = []
    measured = measure(ScriptedMachine([SLOW]), [counting(log, "a").__next__], num_turns=4, max_wait=0.0)
    assert (len(measured.turns), measured.num_dropped, measured.is_throttled) == (4, 0, True)


def test_measuring_ends_although_every_turn_is_throttled() -> None:
    log: list[str] = []
    machine = ScriptedMachine([FAST, SLOW] * 50)
    measured = measure(machine, [counting(log, "a").__next__], num_turns=2, max_wait=60.0)
    assert len(log) == MAX_TURNS * 2
    assert measured.is_throttled


def test_candidates_without_amx_ignore_throttling() -> None:
    log: list[str] = []
    machine = ScriptedMachine([SLOW])
    measured = measure(machine, [counting(log, "a").__next__], num_turns=3, max_wait=60.0, needs_amx=False)
    assert (len(log), measured.num_dropped, measured.is_throttled) == (3, 0, False)


@pytest.mark.parametrize(
    ("work", "peak", "seconds", "is_memory_bound"),
    [
        (MinimumWork(20.0, 100.0), 100.0, 2.0, True),
        (MinimumWork(20.0, 400.0), 100.0, 4.0, False),
        (MinimumWork(20.0, 400.0), 0.0, 2.0, True),  # no AMX: memory is the only known limit
    ],
)
def test_the_roofline_is_the_larger_of_both_limits(
    work: MinimumWork, peak: float, seconds: float, is_memory_bound: bool
) -> None:
    limits = MachineLimits(10.0, peak)
    assert work.min_seconds(limits) == seconds
    assert work.is_memory_bound(limits) == is_memory_bound


def test_figures_are_medians_of_paired_runs() -> None:
    """Every turn is twice as slow as the one before, for machine and candidates: ratios stay equal."""
    work = MinimumWork(10.0, 0.0)
    turns = tuple(
        Turn(
            (Run(2.0 * slow, work, {"gemm": 1.0 * slow}), Run(6.0 * slow, work)),
            (MachineLimits(10.0 / slow, 0.0), MachineLimits(10.0 / slow, 0.0)),
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
