"""A server for each figure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from load.figure import Start
from server.process import Server


@pytest.fixture
def start(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Start]:
    """`start("--flag", ...)` is a server on the tiny model that is ready."""
    servers: list[Server] = []

    def start(*flags: str) -> Server:
        servers.append(Server(tmp_path, tiny_checkpoint, *flags))
        return servers[-1].wait_until_ready()

    yield start
    for server in servers:
        server.stop()
        assert "Traceback" not in server.log, server.log
