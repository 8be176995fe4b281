"""Fixtures for every test."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from data.tiny_llama import write_tiny_llama
from long_tests import LongTests

if TYPE_CHECKING:  # it imports torch
    from octavo import LLM

# Set before torch is imported: parallel test processes with a thread per core each would be very slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow machine must not fail a test: examples have no deadline.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(LongTests(terminal))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cache packed weights for the duration of the test run, separately from the cache of the user."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("OCTAVO_CACHE_DIR")
    os.environ["OCTAVO_CACHE_DIR"] = str(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    if before is None:
        del os.environ["OCTAVO_CACHE_DIR"]
    else:
        os.environ["OCTAVO_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the package's log level: commands that run inside the test process change it."""
    logger = logging.getLogger("octavo")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def assets() -> Callable[[str], Path]:
    """`assets("name")` returns the path of a real model or tokenizer, or skips the test without it."""

    def find(name: str) -> Path:
        folder = os.environ.get("OCTAVO_TEST_ASSETS")
        if not folder:
            pytest.skip("OCTAVO_TEST_ASSETS is not set: it names the folder with the real test models")
        path = Path(folder) / name
        if not path.exists():
            if os.environ.get("CI"):  # CI fetches every file: skipping here would hide a test
                pytest.fail(f"{name} is not in OCTAVO_TEST_ASSETS ({folder})")
            pytest.skip(f"{name} is not in OCTAVO_TEST_ASSETS ({folder})")
        return path

    return find


@pytest.fixture
def untraced() -> Iterator[None]:
    """Disable coverage, which makes pure Python code several times slower. For tests that repeat code which
    other tests cover. (pytest-cov's `no_cover` has no effect in xdist.)"""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure("...")` prints a measured ratio at the end of the run, even if output is captured."""
    return lambda line: record_property("figure", line)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a complete checkpoint folder: a random Llama of 0.1 M parameters whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llm(tiny_checkpoint: Path) -> Iterator["LLM"]:
    from octavo import LLM

    with LLM(str(tiny_checkpoint), kv_memory="4MiB", block_size=8) as llm:
        yield llm
        llm.check()
        assert llm.stats().num_running == 0


# This hook must be in this file: the process that prints the summary loads no other conftest.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of simulation, purity and load, even if output is captured."""
    figures = list(_recorded(terminalreporter, "simulated"))
    if figures:
        terminalreporter.section("simulation")
        for line in sorted(figures):
            terminalreporter.write_line(line)
    for key, title in (
        ("purity", "purity: answers equal to the plain ones, bit for bit"),
        ("perplexity", "perplexity of SmolLM2"),
        ("load", "load and chaos over HTTP"),
        ("figure", "ratios of times: red when worse than twice the bar"),
        ("validity", "answers held to a schema"),
    ):
        lines = list(_recorded(terminalreporter, key))
        if lines:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(line)
    found = sorted(_recorded(terminalreporter, "planted bug"))
    if found:
        terminalreporter.section(f"planted bugs: {len(found)} found, with the steps it took")
        for line in found:
            terminalreporter.write_line(line)


def _recorded(terminalreporter: pytest.TerminalReporter, key: str) -> Iterator[str]:
    for report in terminalreporter.stats.get("passed", []):
        if getattr(report, "when", "") == "call":
            yield from (str(value) for name, value in report.user_properties if name == key)
