"""The length limit of socket paths decides where the run folder is and which paths are rejected."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.link.folder import MAX_SOCKET_PATH, EngineFolder, EngineSettings
from octavo.link.run_folder import MAX_RESTARTS, RunFolder

# A run folder and its content, as named by `tempfile` and `RunFolder`.
BELOW_TMPDIR = len(bytes(EngineFolder(Path(f"/octavo-12345678/engine-{MAX_RESTARTS}")).socket))
NARROW, WIDE = "x", "é"  # one byte and two bytes


@pytest.fixture
def base() -> Iterator[Path]:
    """Return a short path, unlike `tmp_path`: the tests extend it up to the limit."""
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as path:
        yield Path(path)


def named(base: Path, num_bytes: int, letter: str) -> Path:
    """Create a folder whose path has the given number of bytes, mostly in the given letter."""
    left = num_bytes - len(bytes(base)) - 1
    width = len(letter.encode())
    path = base / (NARROW * (left % width) + letter * (left // width))
    assert len(bytes(path)) == num_bytes
    path.mkdir()
    return path


@pytest.fixture
def set_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(tempfile, "tempdir", None)  # clears the TMPDIR that `tempfile` cached
    yield monkeypatch
    tempfile.tempdir = None


@pytest.mark.parametrize("letter", [NARROW, WIDE])
@pytest.mark.parametrize("too_many", [0, 1])
def test_the_run_folder_is_in_tmpdir_if_every_socket_path_fits(
    base: Path, set_tmpdir: pytest.MonkeyPatch, letter: str, too_many: int
) -> None:
    tmpdir = named(base, MAX_SOCKET_PATH - BELOW_TMPDIR + too_many, letter)
    set_tmpdir.setenv("TMPDIR", str(tmpdir))
    run_folder = RunFolder.create()
    try:
        assert run_folder.path.parent == (Path("/tmp") if too_many else tmpdir)
        assert list(tmpdir.iterdir()) == ([] if too_many else [run_folder.path])
        # Engine folders can be created in whichever folder was chosen.
        for number in (0, MAX_RESTARTS):
            EngineFolder.create(run_folder.engine_path(number), EngineSettings({}))
    finally:
        run_folder.remove()


@pytest.mark.parametrize("letter", [NARROW, WIDE])
def test_the_longest_path_can_be_bound_and_one_byte_more_is_rejected(base: Path, letter: str) -> None:
    longest = MAX_SOCKET_PATH - len(b"/socket")
    folder = EngineFolder(named(base, longest, letter))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(folder.socket))
    folder.socket.unlink()
    folder.path.rmdir()
    assert EngineFolder.create(folder.path, EngineSettings({})).path.is_dir()
    with pytest.raises(ConfigError, match=f"{MAX_SOCKET_PATH} bytes.*TMPDIR"):
        EngineFolder.create(folder.path.with_name(folder.path.name + NARROW), EngineSettings({}))
