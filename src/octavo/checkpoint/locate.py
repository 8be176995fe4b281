"""Where a checkpoint lies: a local directory, a GGUF file, or a repository of the Hugging Face hub."""

import logging
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

# Data only. No code, no pickles: what is never downloaded cannot be run.
WEIGHT_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
TEXT_PATTERNS = ("*.json", "*.jinja")
# Second copies of the weights that some repositories carry, and other people's subfolders.
IGNORED_PATTERNS = ("consolidated*.safetensors", "*/*.safetensors", "*/*.json")
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_GGUF = re.compile(rf"({_HUB_ID.pattern})/([\w.\-/ ]+\.gguf)")


@dataclass(frozen=True)
class Location:
    name: str
    path: Path  # a directory, or a file
    revision: str | None = None  # the commit, where the files came from the hub


def locate(
    model: str | None,
    *,
    checkpoint_path: str | Path | None = None,
    revision: str | None = None,
    patterns: tuple[str, ...] = WEIGHT_PATTERNS,
) -> Location:
    """A path that exists wins over a hub id of the same spelling."""
    if (model is None) == (checkpoint_path is None):
        raise ConfigError(
            "Name the checkpoint once: either `model` (a hub id or a path) or `checkpoint_path` (a path)."
        )
    if checkpoint_path is not None:
        return _local(_home_expanded(checkpoint_path), revision)
    assert model is not None
    path = _home_expanded(model)
    if _is_there(path):
        return _local(path, revision)
    if (match := _HUB_GGUF.fullmatch(model)) and ".." not in path.parts:
        return _gguf_from_hub(match[1], match[2], revision)
    if _HUB_ID.fullmatch(model) and path.suffix not in {".gguf", ".safetensors", *PICKLE_SUFFIXES}:
        return _from_hub(model, revision, patterns, IGNORED_PATTERNS)
    raise CheckpointError(_neither_path_nor_hub_id(model))


def _home_expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def _is_there(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a zero byte in the name
        return False
    except OSError as error:
        raise CheckpointError(f"Cannot open {_shown(path)}: {error.strerror}. Check the path.") from error
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise CheckpointError(f"{_shown(path)} is neither a file nor a directory. Check the path.")
    return True


def _neither_path_nor_hub_id(model: str) -> str:
    return (
        f"There is no file or directory {_shown(model)}, nor is it a hub id "
        "(owner/name or owner/name/file.gguf)."
    )


def _shown(name: str | Path) -> str:
    text = str(name)
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _local(path: Path, revision: str | None) -> Location:
    if not _is_there(path):
        raise CheckpointError(f"There is no file or directory {_shown(path)}. Check the path.")
    if revision is not None:
        raise ConfigError(f"`revision` is for hub ids; {str(path)!r} is a local path. Leave it out.")
    resolved = path.resolve()
    return Location(resolved.stem if resolved.is_file() else resolved.name, path)


def _gguf_from_hub(repository: str, file: str, revision: str | None) -> Location:
    snapshot = _from_hub(repository, revision, (file,), ())
    path = snapshot.path / file
    if not path.is_file():  # the hub is asked for a pattern, and a pattern may match nothing
        raise CheckpointError(
            f"{repository} has no file {file!r} at commit {snapshot.revision}. Check the spelling against "
            f"the list on https://huggingface.co/{repository}/tree/{revision or 'main'}."
        )
    return Location(f"{repository}/{file}", path, snapshot.revision)


def _from_hub(
    repository: str, revision: str | None, patterns: tuple[str, ...], ignored: tuple[str, ...]
) -> Location:
    # Imported here: it costs a third of a second and local checkpoints do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{repository} (revision {revision})" if revision else repository
    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(ignored)
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{wanted} is gated. Accept its terms on huggingface.co, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repository} has no revision {revision!r} on the hub.") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{repository} is not on the hub, or private: check the spelling, or log in with `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{wanted} is not in the local cache and the hub cannot be reached. Connect to the network (and "
            f"unset HF_HUB_OFFLINE), or run `hf download {repository}` on another machine and give the "
            "directory as the model."
        ) from error
    except HFValidationError as error:
        raise CheckpointError(_neither_path_nor_hub_id(repository)) from error
    except Exception as error:  # of the network library, which is not always the same one
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"Downloading {wanted} failed ({reason}). Try again.") from error
    # The cache keeps each snapshot in a folder named by its commit.
    commit = Path(folder).name
    logger.info("%s is at commit %s", wanted, commit)
    return Location(repository, Path(folder), commit)
