"""With `--log-format json`, every line that a starting server logs is a JSON object."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server.process import StartServer

pytestmark = pytest.mark.xdist_group("server")

FIELDS = {"time", "level", "process", "logger", "message"}
PATIENCE = 300  # seconds; only to prevent hanging
JSON = ("--log-format", "json")

# A library that warns when imported. Each process imports it after it has set up its logs.
NOISY_LIBRARY = """
import sys

class NoisyLibrary:
    def find_spec(self, name, path=None, target=None):
        if name in ("octavo.server.lifecycle", "octavo.engine.build"):
            import logging, threading, warnings
            warnings.warn("a Python warning", stacklevel=2)
            logger = logging.getLogger("noisy")
            logger.addHandler(logging.StreamHandler())
            logger.propagate = False
            logger.warning("a line of a library")
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        return None

sys.meta_path.insert(0, NoisyLibrary())
"""


def objects_of(log: str) -> list[dict[str, object]]:
    """Parse the lines of a log, and check that each is an object with the standard fields."""
    lines = [json.loads(line) for line in log.splitlines()]
    assert all(lines)
    assert all(line.keys() >= FIELDS for line in lines)
    return lines


def messages(lines: list[dict[str, object]], **wanted: str) -> list[str]:
    return [str(line["message"]) for line in lines if line.items() >= wanted.items()]


def test_warnings_of_every_kind_while_a_server_starts(start: StartServer, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISY_LIBRARY)
    environ = {"OCTAVO_KV_MEMROY": "1GiB", "PYTHONPATH": str(tmp_path)}
    server = start(*JSON, "--host", "0.0.0.0", environ=environ).wait_until_ready()
    server.terminate()
    assert server.process.wait(PATIENCE) == 0
    lines = objects_of(server.log)
    warnings = messages(lines, level="warning", process="octavo")
    assert any("OCTAVO_KV_MEMROY is set but is not an option" in warning for warning in warnings)
    assert any("set an API key" in warning for warning in warnings)
    for process in ("octavo", "octavo engine r0"):
        assert "UserWarning: a Python warning" in messages(lines, logger="py.warnings", process=process)[0]
        assert messages(lines, logger="noisy", process=process) == ["a line of a library"]
        (uncaught,) = [line for line in lines if (line["level"], line["process"]) == ("critical", process)]
        assert "ZeroDivisionError" in str(uncaught["traceback"])


RunServe = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_serve(tmp_path: Path) -> RunServe:
    """Run a server that cannot start."""

    def run(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", *flags]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=tmp_path,
            env=os.environ | environ,
        )

    return run


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ((*JSON, "m", "--port", "0", "--host", "no.such.invalid"), 2, "cannot listen on"),
        ((*JSON, "m", "--kv-memory", "much"), 2, "'much'"),
        (("m", "--config", "json.yaml"), 2, "'much'"),
        ((*JSON, "m", "--config", "absent.yaml"), 2, "cannot read the config file"),
        (JSON, 2, "MODEL"),
        ((*JSON, "./absent", "--port", "0"), 1, "There is no file or directory"),
        ((*JSON, "m", "--kv-memory", "much", "--debug"), 1, "uncaught exception"),
    ],
)
def test_startup_errors_are_json(
    run_serve: RunServe, tmp_path: Path, flags: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "json.yaml").write_text("log_format: json\nkv_memory: much\n")
    done = run_serve(*flags)
    assert (done.returncode, done.stdout) == (code, "")
    lines = objects_of(done.stderr)
    assert any(words in str(line["message"]) for line in lines if line["level"] in ("error", "critical"))


def test_json_can_be_set_by_environment_variable(run_serve: RunServe) -> None:
    (line,) = objects_of(run_serve("m", "--kv-memory", "much", OCTAVO_LOG_FORMAT="json").stderr)
    assert (line["level"], line["process"]) == ("error", "octavo")


def test_the_text_format_is_unchanged(run_serve: RunServe) -> None:
    done = run_serve("m", "--kv-memory", "much", OCTAVO_LOG_FORMAT="human")
    assert done.stderr.startswith("error: ")
