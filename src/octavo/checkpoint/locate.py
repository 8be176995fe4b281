"""Locate a checkpoint: a local directory, a GGUF file, or a repository on the Hugging Face hub."""

import logging
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

# Data only, no code and no pickles: files that are never downloaded cannot be executed.
WEIGHT_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
TEXT_PATTERNS = ("*.json", "*.jinja")
# Second copies of the weights that some repositories contain, and files in subfolders.
IGNORED_PATTERNS = ("consolidated*.safetensors", "*/*.safetensors", "*/*.json")
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_GGUF = re.compile(rf"({_HUB_ID.pattern})/([\w.\-/ ]+\.gguf)")


@dataclass(frozen=True)
class Location:
    name: str
    path: Path  # a directory, or a file
    revision: str | None = None  # the commit, if the files came from the hub


def locate(
    model: str | None,
    *,
    checkpoint_path: str | Path | None = None,
    revision: str | None = None,
    patterns: tuple[str, ...] = WEIGHT_PATTERNS,
) -> Location:
    """Return the location of the checkpoint; download it from the hub if necessary.

    An existing path takes precedence over a hub id of the same name.
    """
    if (model is None) == (checkpoint_path is None):
        raise ConfigError(
            "Specify the checkpoint once: either `model` (a hub id or a path) or `checkpoint_path` (a path)."
        )
    if checkpoint_path is not None:
        return _local(_expand_home(checkpoint_path), revision)
    assert model is not None
    path = _expand_home(model)
    if _exists(path):
        return _local(path, revision)
    if (match := _HUB_GGUF.fullmatch(model)) and ".." not in path.parts:
        return _gguf_from_hub(match[1], match[2], revision)
    if _HUB_ID.fullmatch(model) and path.suffix not in {".gguf", ".safetensors", *PICKLE_SUFFIXES}:
        return _from_hub(model, revision, patterns, IGNORED_PATTERNS)
    raise CheckpointError(_neither_path_nor_hub_id(model))


def _expand_home(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)


def _exists(path: Path) -> bool:
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
        "(owner/name or owner/name/file.gguf). Check the spelling."
    )


def _shown(name: str | Path) -> str:
    text = str(name)
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _local(path: Path, revision: str | None) -> Location:
    if not _exists(path):
        raise CheckpointError(f"There is no file or directory {_shown(path)}. Check the path.")
    if revision is not None:
        raise ConfigError(f"`revision` applies to hub ids only; {str(path)!r} is a local path. Omit it.")
    resolved = path.resolve()
    return Location(resolved.stem if resolved.is_file() else resolved.name, path)


def _gguf_from_hub(repository: str, file: str, revision: str | None) -> Location:
    snapshot = _from_hub(repository, revision, (file,), ())
    path = snapshot.path / file
    if not path.is_file():  # the download takes a pattern, which may match nothing
        raise CheckpointError(
            f"{repository} has no file {file!r} at commit {snapshot.revision}. Check the spelling against "
            f"the list on https://huggingface.co/{repository}/tree/{revision or 'main'}."
        )
    return Location(f"{repository}/{file}", path, snapshot.revision)


def _from_hub(
    repository: str, revision: str | None, patterns: tuple[str, ...], ignored: tuple[str, ...]
) -> Location:
    # Imported here because it takes a third of a second and local checkpoints do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    requested = f"{repository} (revision {revision})" if revision else repository
    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(ignored)
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{requested} is gated. Accept its terms on huggingface.co, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repository} has no revision {revision!r} on the hub.") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{repository} does not exist on the hub or is private. Check the spelling, or log in with "
            "`hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{requested} is not in the local cache and the hub cannot be reached. Connect to the network "
            f"(and unset HF_HUB_OFFLINE), or run `hf download {repository}` on another machine and pass the "
            "directory as the model."
        ) from error
    except HFValidationError as error:
        raise CheckpointError(_neither_path_nor_hub_id(repository)) from error
    except Exception as error:  # from the network library, which differs between versions of the hub client
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"Downloading {requested} failed ({reason}). Try again.") from error
    # The cache keeps each snapshot in a folder named after its commit.
    commit = Path(folder).name
    logger.info("%s resolved to commit %s", requested, commit)
    return Location(repository, Path(folder), commit)
