"""The folder that an engine process shares with its parent: settings, socket, heartbeat, failure."""

from pathlib import Path
from typing import Any, Self

import msgspec

from octavo.errors import ConfigError
from octavo.link.heartbeat import HeartbeatFile
from octavo.link.profile_window import ProfileWindow

EXIT_CANNOT_START = 3  # the settings or the checkpoint are wrong, so a restart would fail too
# Bytes in the path of a Unix socket: the minimum over operating systems (macOS allows 103, Linux 107).
MAX_SOCKET_PATH = 103
FIRST_REPLICA = "r0"


class EngineSettings(msgspec.Struct, frozen=True):
    options: dict[str, Any]  # of `EngineOptions`
    log_level: str = "info"
    log_format: str = "human"
    profile: ProfileWindow | None = None
    expects_grammars: bool = False  # in-flight requests with grammars will be replayed to this engine
    replica: str = ""  # the name of the replica, for log lines
    num_engines: int = 1  # of the same server, which share the memory and the cores of this machine


class EngineFolder:
    """Accessible to the user only, which is the only protection of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "socket"
        self.address = f"ipc://{self.socket}"
        self._settings = path / "settings.json"
        self._failure = path / "failure.txt"
        self._heartbeat = path / "status"

    @classmethod
    def create(cls, path: Path, settings: EngineSettings) -> Self:
        folder = cls(path)
        if not folder.fits:
            raise ConfigError(
                f"the socket path {folder.socket} is longer than {MAX_SOCKET_PATH} bytes:"
                " set TMPDIR to a folder with a shorter path"
            )
        path.mkdir(mode=0o700)
        folder._settings.write_bytes(msgspec.json.encode(settings))
        HeartbeatFile.create(folder._heartbeat)
        return folder

    @property
    def fits(self) -> bool:
        """Whether the socket path is short enough. The limit is in bytes, not characters."""
        return len(bytes(self.socket)) <= MAX_SOCKET_PATH

    def open_heartbeat(self) -> HeartbeatFile:
        return HeartbeatFile.open(self._heartbeat)

    def read_settings(self) -> EngineSettings:
        return msgspec.json.decode(self._settings.read_bytes(), type=EngineSettings)

    def write_failure(self, reason: str) -> None:
        self._failure.write_text(reason)

    def read_failure(self) -> str | None:
        return self._failure.read_text() if self._failure.exists() else None
