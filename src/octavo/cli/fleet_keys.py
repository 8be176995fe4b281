"""`octavo fleet keys`: create the key files of a fleet across machines."""

import argparse
import os
from pathlib import Path

from octavo.cli.invocation import Invocation
from octavo.errors import ConfigError

USAGE = "fleet keys FOLDER"
DESCRIPTION = """\
Create the key files of a fleet across machines: replica.key for the machines that run `octavo replica`, and
front-end.key for those that run `octavo serve --fleet`. Each allows connections with the other. Existing key
files are not overwritten."""

REPLICA_FILE = "replica.key"
FRONT_END_FILE = "front-end.key"
REPLICA_COMMENT = (
    "Octavo fleet key of the replicas. Secret: copy it only to machines that run `octavo replica`."
)
FRONT_END_COMMENT = (
    "Octavo fleet key of the front ends. Secret: copy it only to machines that run `octavo serve --fleet`."
)
NEXT_STEPS = """\
{replica}
  Copy it to every machine that runs a replica, readable by its user only. There, run:
  octavo replica MODEL --listen 0.0.0.0:{port} --fleet-key {replica_file}

{front_end}
  Copy it to every machine that runs a front end, readable by its user only. There, run:
  octavo serve MODEL --fleet HOST:{port},HOST:{port} --fleet-key {front_end_file}

Both files are secret. To replace them, create new ones in another folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="folder for the key files; created if it does not exist"
    )
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.link.fleet_key import new_fleet_keys
    from octavo.membership.addresses import FLEET_PORT

    folder: Path = call.args.folder
    replica, front_end = new_fleet_keys()
    _create_folder(folder)
    _create_files(
        {
            folder / REPLICA_FILE: replica.text(REPLICA_COMMENT),
            folder / FRONT_END_FILE: front_end.text(FRONT_END_COMMENT),
        }
    )
    call.terminal.write(
        NEXT_STEPS.format(
            replica=folder / REPLICA_FILE,
            front_end=folder / FRONT_END_FILE,
            replica_file=REPLICA_FILE,
            front_end_file=FRONT_END_FILE,
            port=FLEET_PORT,
        )
    )
    return 0


def _create_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot create the folder {folder} ({_reason(error)}): choose another") from error


def _create_files(contents: dict[Path, str]) -> None:
    """Create all files or none. Files that exist are not changed."""
    created: list[Path] = []
    try:
        for path, content in contents.items():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                created.append(path)
                file.write(content)
    except OSError as error:
        for path in created:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise ConfigError(
                f"{error.filename} already exists: use it, or choose another folder for new keys"
            ) from None
        raise ConfigError(
            f"cannot write the key files ({_reason(error)}): choose another folder or free some space"
        ) from error


def _reason(error: OSError | ValueError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "invalid path"
