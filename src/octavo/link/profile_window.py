"""The part of an engine's run to record, and the file for it. `engine.profile` writes the file."""

from pathlib import Path

import msgspec

from octavo.errors import ConfigError


class ProfileWindow(msgspec.Struct, frozen=True):
    path: str
    seconds: float  # from the engine's first step for a request

    def begin_file(self) -> None:
        """Write an empty trace, so that a ConfigError is raised now and not at the first step."""
        try:
            Path(self.path).write_bytes(b"[\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write the profile {self.path}: {error.strerror}; choose another file"
            ) from error
