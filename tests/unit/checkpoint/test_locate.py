"""Hub ids, local paths, and files that are never read."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import octavo
from octavo.checkpoint.locate import TEXT_PATTERNS, locate
from octavo.errors import CheckpointError, ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Call = dict[str, Any]  # the keyword arguments of a download


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Call]:
    """Return a fake hub that records downloads."""
    calls: list[Call] = []

    def snapshot_download(repo_id: str, **options: object) -> str:
        calls.append({"repo_id": repo_id, **options})
        return str(tmp_path / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return calls


def test_a_hub_id_is_pinned_to_a_commit(hub: list[Call], tmp_path: Path) -> None:
    location = locate("owner/model", revision="v1.0")
    assert (location.name, location.revision) == ("owner/model", COMMIT)
    assert location.path == tmp_path / "snapshots" / COMMIT
    assert (hub[0]["repo_id"], hub[0]["revision"]) == ("owner/model", "v1.0")


def test_only_data_is_downloaded(hub: list[Call]) -> None:
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    locate("owner/model")
    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "modeling_custom.py",
        "pytorch_model.bin",
        "model.pth",
        "training_args.pt",
        "consolidated.safetensors",
        "original/params.json",
        "onnx/model.onnx",
        "model-Q4_K_M.gguf",
    ]
    kept = filter_repo_objects(
        files, allow_patterns=hub[0]["allow_patterns"], ignore_patterns=hub[0]["ignore_patterns"]
    )
    assert list(kept) == files[:5]


def test_a_tokenizer_alone_does_not_download_weights(hub: list[Call]) -> None:
    locate("owner/model", patterns=TEXT_PATTERNS)
    assert not any("safetensors" in pattern for pattern in hub[0]["allow_patterns"])


def test_one_gguf_file_from_a_repository(hub: list[Call], tmp_path: Path) -> None:
    file = tmp_path / "snapshots" / COMMIT / "model.Q4_K_M.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    location = locate("owner/model-GGUF/model.Q4_K_M.gguf", revision="main")
    assert (location.name, location.path) == ("owner/model-GGUF/model.Q4_K_M.gguf", file)
    assert location.revision == COMMIT
    assert hub[0]["repo_id"] == "owner/model-GGUF"
    assert hub[0]["allow_patterns"] == ["model.Q4_K_M.gguf"]


@pytest.mark.usefixtures("hub")
def test_the_error_names_a_missing_gguf_file() -> None:
    with pytest.raises(CheckpointError, match=r"owner/name has no file 'typo\.gguf'.*tree/v1"):
        locate("owner/name/typo.gguf", revision="v1")


def test_an_existing_path_takes_precedence_over_the_hub(hub: list[Call], tmp_path: Path) -> None:
    (tmp_path / "owner" / "model").mkdir(parents=True)
    location = locate("owner/model")
    assert (location.name, location.path, location.revision) == ("model", Path("owner/model"), None)
    assert hub == []


@pytest.mark.parametrize(
    "model",
    [
        "nothing-here",
        "./owner/model",
        "/no/such/dir",
        "a/b.bin",
        "a/b.gguf",
        "~/x/y",
        "~no-such-user/x",
        "a/../b",
        "a/b/../../../c.gguf",
        "a/b\0",
    ],
)
def test_names_that_are_neither_path_nor_hub_id_are_rejected(hub: list[Call], model: str) -> None:
    with pytest.raises(CheckpointError, match="no file or directory"):
        locate(model)
    assert hub == []


@pytest.mark.parametrize("model", ["owner/model.", "owner/na--me", "owner/a..b", "owner/" + "a" * 99])
def test_ids_that_the_hub_rejects_are_rejected(model: str) -> None:
    """Our pattern accepts them; the hub library rejects them before any network access."""
    with pytest.raises(CheckpointError, match=r"no file or directory 'owner/.*nor is it a hub id"):
        locate(model)


def test_a_name_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    for model, checkpoint_path in (("a" * 5000, None), (None, tmp_path / ("b" * 300))):
        with pytest.raises(CheckpointError, match="too long") as caught:
            locate(model, checkpoint_path=checkpoint_path)
        assert len(str(caught.value)) < 300


def test_special_files_are_rejected(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    for model, checkpoint_path in ((str(pipe), None), (None, pipe)):
        with pytest.raises(CheckpointError, match="neither a file nor a directory"):
            locate(model, checkpoint_path=checkpoint_path)


@pytest.mark.parametrize("error", [RuntimeError("peer closed\nmore"), TimeoutError(), Exception("odd")])
def test_a_failed_download_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(*args: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(
        CheckpointError, match=r"^Downloading owner/model failed \(.+\)\. Try again\.$"
    ) as caught:
        locate("owner/model")
    assert "\n" not in str(caught.value)


def test_the_error_names_the_checkpoint_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="once"):
        locate("owner/model", checkpoint_path=tmp_path)
    with pytest.raises(ConfigError, match="once"):
        locate(None)
    with pytest.raises(ConfigError, match="revision"):
        locate(None, checkpoint_path=tmp_path, revision="main")


def test_the_error_without_network_says_what_to_do(tmp_path: Path) -> None:
    script = "from octavo.checkpoint import open_checkpoint; open_checkpoint('owner/model')"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(octavo.__file__).parents[1]),
    }
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("octavo.errors.CheckpointError: owner/model is not in the local cache")
    assert "hf download owner/model" in last
