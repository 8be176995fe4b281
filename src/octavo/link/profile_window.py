"""Which part of an engine's life is to be recorded, and where. The engine writes it: see `engine.profile`."""

from pathlib import Path

import msgspec

from octavo.errors import ConfigError


class ProfileWindow(msgspec.Struct, frozen=True):
    path: str
    seconds: float  # from the first step that an engine does for a request

    def begin_file(self) -> None:
        """An empty trace. Raises ConfigError now, rather than when there is something to write."""
        try:
            Path(self.path).write_bytes(b"[\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write the profile {self.path}: {error.strerror}; give another file"
            ) from error
