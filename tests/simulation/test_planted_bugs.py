"""The simulation finds every planted bug. If one of its rules were missing, a bug would survive."""

from collections.abc import Callable

import pytest

from octavo.simulate.planted_bug import PlantedBug
from octavo.simulate.planted_bugs import ALL_BUGS
from octavo.simulate.simulation import Simulation
from octavo.simulate.tracked_request import Violation

# The same simulations as chunk 0 of test_simulation.py, which passes without the bug.
FIRST_SEED = 0
MAX_STEPS = 100_000


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("bug", ALL_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_found(bug: PlantedBug, record_property: Callable[[str, object], None]) -> None:
    before = bug.owner.__dict__[bug.method]
    steps, seed, finding = 0, FIRST_SEED, ""
    with bug.planted():
        while not finding and steps < MAX_STEPS:
            simulation = Simulation(seed)
            try:
                simulation.run()
            except Violation as violation:
                finding = str(violation)
            steps += simulation.figures.steps
            seed += 1
    assert bug.owner.__dict__[bug.method] is before
    assert finding, f"not found in {steps} steps"
    record_property("planted bug", f"{bug.name:<66} {steps:>6}   {finding.split(': ', 1)[1][:70]}")


def test_planted_bugs_are_many_and_distinct() -> None:
    assert len({bug.name for bug in ALL_BUGS}) == len(ALL_BUGS) >= 30
    assert len({(bug.owner, bug.method, bug.right, bug.wrong) for bug in ALL_BUGS}) == len(ALL_BUGS)


def test_a_bug_that_no_longer_applies_raises_an_error() -> None:
    stale = PlantedBug("stale", ALL_BUGS[0].owner, ALL_BUGS[0].method, "text that is not there", "")
    with pytest.raises(LookupError, match="rewrite the bug"), stale.planted():
        pass
