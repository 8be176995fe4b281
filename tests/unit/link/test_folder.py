"""The folder that an engine process and its parent share."""

import stat
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.link.folder import EngineFolder, EngineSettings


def test_settings_round_trip_and_are_private(tmp_path: Path) -> None:
    settings = EngineSettings({"model": "m", "kv_memory": 1 << 40}, log_level="debug")
    folder = EngineFolder.create(tmp_path / "engine", settings)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    again = EngineFolder(tmp_path / "engine")
    assert again.read_settings() == settings
    assert again.read_failure() is None
    again.write_failure("no such model")
    assert folder.read_failure() == "no such model"


def test_a_folder_belongs_to_one_engine(tmp_path: Path) -> None:
    EngineFolder.create(tmp_path / "engine", EngineSettings({}))
    with pytest.raises(FileExistsError):
        EngineFolder.create(tmp_path / "engine", EngineSettings({}))


def test_a_path_too_long_for_a_socket_is_rejected_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        EngineFolder.create(tmp_path / ("x" * 120), EngineSettings({}))
