"""Figures of the simulation, shown at the end of the run whether or not output is captured."""

import sys
from collections.abc import Iterator

import pytest

FIGURES = "simulated"
FOUND = "planted bug"


@pytest.fixture
def untraced() -> Iterator[None]:
    """Without coverage, which makes a simulation three times slower. (`no_cover` has no effect in xdist.)"""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = list(_recorded(terminalreporter, FIGURES))
    if figures:
        terminalreporter.section("simulation")
        for line in sorted(figures):
            terminalreporter.write_line(line)
    found = sorted(_recorded(terminalreporter, FOUND))
    if found:
        terminalreporter.section(f"planted bugs: {len(found)} found, with the steps it took")
        for line in found:
            terminalreporter.write_line(line)


def _recorded(terminalreporter: pytest.TerminalReporter, key: str) -> Iterator[str]:
    for report in terminalreporter.stats.get("passed", []):
        if getattr(report, "when", "") == "call":
            yield from (str(value) for name, value in report.user_properties if name == key)
