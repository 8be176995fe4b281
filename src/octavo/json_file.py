"""Read the small text and JSON files of a checkpoint, up to a fixed size limit."""

import json
import stat
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError

MAX_FILE_BYTES = 64 << 20  # the largest known file, Gemma's tokenizer.json, has 33 MB


def read_json_object(path: Path) -> dict[str, Any]:
    return parse_json_object(read_text(path), path)


def read_text(path: Path) -> str:
    try:
        # Before opening: a named pipe without a writer would never open.
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointError(f"{path} is not a regular file. Fetch it again.")
        if facts.st_size > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{path} is larger than the limit of {MAX_FILE_BYTES} bytes. Check that it is the right file."
            )
        with path.open("rb") as file:
            content = file.read(facts.st_size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}). Fetch it again.") from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is not UTF-8 text (byte {error.start}). It is damaged: fetch it again."
        ) from error


def parse_json_object(source: str, path: Path) -> dict[str, Any]:
    """Parse a JSON object. `path` names the source in errors."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must contain a JSON object. Fetch it again.")
    return value
