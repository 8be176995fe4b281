"""Servers to attack: on the tiny model with a longer context, and with a key."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from attacks.neighbour import KEY
from server.process import Server

CONTEXT = 16_384


class StartAttacked(Protocol):
    """Starts a server with flags of `octavo serve` and waits until it is ready."""

    def __call__(
        self,
        *flags: str,
        model: Path | None = None,
        prefix: Sequence[str] = (),
        environ: dict[str, str] | None = None,
    ) -> Server: ...


@pytest.fixture(scope="session")
def roomy_checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacks") / "roomy"
    shutil.copytree(tiny_checkpoint, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    return folder


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key file that contains an indented comment, which must not be a key."""
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text(f"neighbour {KEY} role=operator\n  # todo\n")
    return path


@pytest.fixture
def start(roomy_checkpoint: Path, keys: Path, tmp_path: Path) -> Iterator[StartAttacked]:
    with contextlib.ExitStack() as servers:

        def start(
            *flags: str,
            model: Path | None = None,
            prefix: Sequence[str] = (),
            environ: dict[str, str] | None = None,
        ) -> Server:
            server = _server(
                tmp_path, model or roomy_checkpoint, keys, *flags, prefix=prefix, environ=environ
            )
            servers.callback(server.stop)
            return server.wait_until_ready()

        yield start


@pytest.fixture(scope="session")
def server(roomy_checkpoint: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all attacks that need no flags."""
    with serving(tmp_path_factory.mktemp("attacked"), roomy_checkpoint, keys) as running:
        yield running
        assert "Traceback" not in running.log, running.log


@contextlib.contextmanager
def serving(folder: Path, model: Path, keys: Path) -> Iterator[Server]:
    """Run a server for many attacks, and check that its engine was never replaced."""
    running = _server(folder, model, keys)
    try:
        running.wait_until_ready()
        engine = running.engine_pid
        yield running
        assert running.process.poll() is None, running.log
        assert running.engine_pid == engine, running.log
    finally:
        running.stop()


def _server(
    folder: Path,
    model: Path,
    keys: Path,
    *flags: str,
    prefix: Sequence[str] = (),
    environ: dict[str, str] | None = None,
) -> Server:
    """Start a server without recording, because these tests measure memory."""
    always = ("--kv-memory", "32MiB", "--api-key-file", str(keys))
    return Server(folder, model, *always, *flags, records=False, prefix=prefix, environ=environ)
