"""Half a million steps of the real scheduler and cache without a violation; a seed determines a run."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from octavo.simulate.planted_bugs import ALL_BUGS
from octavo.simulate.simulation import Simulation, run_simulations
from octavo.simulate.tracked_request import Violation

CHUNKS = 4  # pytest-xdist distributes them over the cores
STEPS = int(os.environ.get("OCTAVO_SIMULATION_STEPS", "500_000"))  # more for a soak


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_violation(chunk: int, record_property: Callable[[str, object], None]) -> None:
    figures = run_simulations(first_seed=chunk * 100_000, num_steps=STEPS // CHUNKS)
    record_property("simulated", f"chunk {chunk}: {figures}")
    assert figures.steps >= STEPS // CHUNKS
    # The run is meaningful only if all of these happened often.
    assert figures.preemptions > 500
    assert figures.blocks_evicted > 10_000
    assert figures.prompt_tokens_cached > 10_000
    assert min(figures.aborts, figures.deadlines, figures.errors, figures.rejected) > 300
    assert min(figures.restarts, figures.lost_steps) > 50
    assert min(figures.tokens_accepted, figures.tokens_drafted - figures.tokens_accepted) > 5_000


@pytest.mark.parametrize("seed", [3, 5, 11])
def test_a_seed_determines_the_run(seed: int) -> None:
    logs: list[list[bytes]] = [[], []]
    for log in logs:
        Simulation(seed, log).run()
    assert logs[0] == logs[1]


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Hash seeds differ between processes: this detects iteration over a set of strings."""
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "octavo.simulate", "--replay", "--seed", "8"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(digests) == 1
    assert b"digest" in digests.pop()


def test_a_violation_can_be_replayed() -> None:
    bug = next(bug for bug in ALL_BUGS if bug.name == "missing salt")
    with bug.planted():
        with pytest.raises(Violation, match=r"seed \d+, step \d+: ") as first:
            run_simulations(first_seed=0, num_steps=20_000)
        seed = int(str(first.value).split(",")[0].removeprefix("seed "))
        with pytest.raises(Violation) as again:
            Simulation(seed).run()
    assert str(again.value) == str(first.value)
