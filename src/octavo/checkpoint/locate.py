"""Where a checkpoint lies: a local directory, a GGUF file, or a repository of the Hugging Face hub."""

import logging
import re
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
        return _local(Path(checkpoint_path).expanduser(), revision)
    assert model is not None
    path = Path(model).expanduser()
    if path.exists():
        return _local(path, revision)
    if match := _HUB_GGUF.fullmatch(model):
        location = _from_hub(match[1], revision, (match[2],), ())
        return Location(model, location.path / match[2], location.revision)
    if _HUB_ID.fullmatch(model) and path.suffix not in {".gguf", ".safetensors", *PICKLE_SUFFIXES}:
        return _from_hub(model, revision, patterns, IGNORED_PATTERNS)
    raise CheckpointError(
        f"There is no file or directory {model!r}, nor is it a hub id (owner/name or owner/name/file.gguf)."
    )


def _local(path: Path, revision: str | None) -> Location:
    if not path.exists():
        raise CheckpointError(f"There is no file or directory {str(path)!r}. Check the path.")
    if revision is not None:
        raise ConfigError(f"`revision` is for hub ids; {str(path)!r} is a local path. Leave it out.")
    resolved = path.resolve()
    return Location(resolved.stem if resolved.is_file() else resolved.name, path)


def _from_hub(
    repository: str, revision: str | None, patterns: tuple[str, ...], ignored: tuple[str, ...]
) -> Location:
    # Imported here: it costs a third of a second and local checkpoints do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
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
    except OSError as error:
        raise CheckpointError(f"Downloading {wanted} failed: {error}. Try again.") from error
    # The cache keeps each snapshot in a folder named by its commit.
    commit = Path(folder).name
    logger.info("%s is at commit %s", wanted, commit)
    return Location(repository, Path(folder), commit)
