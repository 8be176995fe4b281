"""The folder of one engine process: who starts it writes the settings, and both find the socket there."""

from pathlib import Path
from typing import Any, Self

import msgspec

from octavo.errors import ConfigError
from octavo.link.profile_window import ProfileWindow
from octavo.link.status_page import StatusPage

EXIT_CANNOT_START = 3  # the settings or the checkpoint are wrong: to try again would not help
# Bytes in the path of a unix socket: the smallest of the kernels' limits (macOS has 103, Linux 107).
LONGEST_SOCKET_PATH = 103


class EngineSettings(msgspec.Struct, frozen=True):
    options: dict[str, Any]  # of `EngineOptions`
    log_level: str = "info"
    log_format: str = "human"
    profile: ProfileWindow | None = None
    expects_grammars: bool = False  # requests with grammars wait for this engine


class EngineFolder:
    """Only the user may look into it: the socket has no other lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "socket"
        self.address = f"ipc://{self.socket}"
        self._settings = path / "settings.json"
        self._failure = path / "failure.txt"
        self._status = path / "status"

    @classmethod
    def create(cls, path: Path, settings: EngineSettings) -> Self:
        folder = cls(path)
        if not folder.fits:
            raise ConfigError(
                f"the path of a socket may have {LONGEST_SOCKET_PATH} bytes; {folder.socket} has more:"
                " let TMPDIR name a shorter folder"
            )
        path.mkdir(mode=0o700)
        folder._settings.write_bytes(msgspec.json.encode(settings))
        StatusPage.create(folder._status)
        return folder

    @property
    def fits(self) -> bool:
        """Whether a socket can have this path. Kernels count bytes, not characters."""
        return len(bytes(self.socket)) <= LONGEST_SOCKET_PATH

    def open_status(self) -> StatusPage:
        return StatusPage.open(self._status)

    def read_settings(self) -> EngineSettings:
        return msgspec.json.decode(self._settings.read_bytes(), type=EngineSettings)

    def write_failure(self, reason: str) -> None:
        self._failure.write_text(reason)

    def read_failure(self) -> str | None:
        return self._failure.read_text() if self._failure.exists() else None
