"""`octavo fleet keys` creates two key files that belong together, and never overwrites one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.link.fleet_key import FleetKey
from unit.cli.scripted import RunCommand


@pytest.fixture(autouse=True)
def permissive_umask() -> Iterator[None]:
    """The files are private even if new files are not, by default."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_two_private_files_allow_each_other(run_octavo: RunCommand, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    ran = run_octavo("fleet", "keys", str(folder))
    assert (ran.code, ran.err) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == ["front-end.key", "replica.key"]
    assert [mode(path) for path in (folder, folder / "replica.key", folder / "front-end.key")] == [
        0o700,
        0o600,
        0o600,
    ]
    replica, front_end = FleetKey.read(folder / "replica.key"), FleetKey.read(folder / "front-end.key")
    assert replica.allowed == {front_end.public: "front-end"}
    assert front_end.allowed == {replica.public: "replica"}
    for expected in (
        str(folder / "replica.key"),
        str(folder / "front-end.key"),
        "octavo replica MODEL --listen 0.0.0.0:7070 --fleet-key replica.key",
        "octavo serve MODEL --fleet HOST:7070,HOST:7070 --fleet-key front-end.key",
    ):
        assert expected in ran.out
    assert replica.secret.hex() not in ran.out
    assert front_end.secret.hex() not in ran.out


def test_an_existing_folder_keeps_its_mode(run_octavo: RunCommand, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert run_octavo("fleet", "keys", str(tmp_path)).code == 0
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("existing", ["replica.key", "front-end.key"])
def test_an_existing_file_is_not_overwritten(existing: str, run_octavo: RunCommand, tmp_path: Path) -> None:
    (tmp_path / existing).write_text("precious")
    ran = run_octavo("fleet", "keys", str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert f"{tmp_path / existing} already exists" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_a_link_is_not_followed(run_octavo: RunCommand, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "replica.key").symlink_to(tmp_path / "elsewhere")
    assert run_octavo("fleet", "keys", str(folder)).code == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_created_is_reported(run_octavo: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "keys"):
        ran = run_octavo("fleet", "keys", str(folder))
        assert ran.code == 2
        assert f"cannot create the folder {folder}" in ran.err


def test_a_folder_must_be_given(run_octavo: RunCommand) -> None:
    ran = run_octavo("fleet", "keys")
    assert ran.code == 2
    assert "FOLDER" in ran.err
