"""Servers for the load tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from load.figure import Start, servers


@pytest.fixture
def start(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Start]:
    with servers(tiny_checkpoint, tmp_path) as start:
        yield start
