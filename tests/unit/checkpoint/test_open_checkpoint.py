"""`open_checkpoint`, the public function of the package."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import octavo
from octavo.checkpoint import open_checkpoint
from octavo.errors import CheckpointError
from unit.checkpoint.tiny_gguf import WriteGguf


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "a-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 6]}))
    save_file({"w": torch.zeros(3, 5), "v": torch.zeros(2)}, folder / "model.safetensors")
    return folder


def write_tokenizer(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 1}}}
    tokenizer["model"] |= {"merges": []}  # type: ignore[operator]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


def test_a_directory(directory: Path) -> None:
    checkpoint = open_checkpoint(str(directory))
    assert (checkpoint.name, checkpoint.format, checkpoint.revision) == ("a-model", "safetensors", None)
    assert checkpoint.config["vocab_size"] == 8
    assert checkpoint.generation_config["eos_token_id"] == [7, 6]
    assert checkpoint.num_parameters == 17
    assert open_checkpoint(checkpoint_path=directory).tensors == checkpoint.tensors


def test_a_gguf_file_and_a_directory_with_one(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    stored = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.eos_token_id": 2})
    checkpoint = open_checkpoint(str(tmp_path / "tiny.gguf"))
    assert (checkpoint.name, checkpoint.format) == ("tiny", "gguf")
    assert checkpoint.generation_config == {"eos_token_id": [2]}
    assert checkpoint.num_parameters == sum(tensor.size for tensor in stored.values())
    assert open_checkpoint(checkpoint_path=tmp_path).path == tmp_path / "tiny.gguf"
    write_tiny_gguf(tmp_path / "tiny2.gguf")
    with pytest.raises(CheckpointError, match="several GGUF files"):
        open_checkpoint(checkpoint_path=tmp_path)


def test_a_separate_tokenizer_keeps_the_models_eos_ids(directory: Path, tmp_path: Path) -> None:
    apart = write_tokenizer(tmp_path / "tokenizer")
    for given in (apart, apart / "tokenizer.json"):
        text = open_checkpoint(str(directory), tokenizer=given).text
        assert text.eos_ids == (7, 6, 1)
        assert text.eos_token == "</s>"
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        _ = open_checkpoint(str(directory), tokenizer=directory / "config.json").text


@pytest.mark.assets
def test_a_tokenizer_from_a_gguf_file(directory: Path, assets: Callable[[str], Path]) -> None:
    path = assets("smollm2-135m-instruct-q4_1.gguf")
    apart = open_checkpoint(str(directory), tokenizer=path).text
    own = open_checkpoint(str(path)).text
    assert apart.tokenizer_json == own.tokenizer_json
    assert apart.eos_ids[:2] == (7, 6)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_pickles_are_rejected(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / f"pytorch_model{suffix}").write_bytes(b"\x80\x04")
    for given in (tmp_path, tmp_path / f"pytorch_model{suffix}"):
        with pytest.raises(CheckpointError, match="run any code"):
            open_checkpoint(checkpoint_path=given)


def test_a_directory_without_weights_or_config_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither safetensors nor GGUF"):
        open_checkpoint(checkpoint_path=tmp_path)
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(checkpoint_path=tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_checkpoint(checkpoint_path=tmp_path)


def test_named_pipes_and_unreadable_directories_are_rejected_at_once(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(checkpoint_path=directory)

    def closed(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)  # tests may run as root, which can read everything
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_checkpoint(checkpoint_path=tmp_path)


def test_code_in_a_checkpoint_never_runs_and_torch_is_not_imported(directory: Path) -> None:
    """Run everything `open_checkpoint` does in a new process, with the checkpoint as working directory."""
    canary = directory / "canary"
    for module in ("modeling_canary", "configuration_canary", "sitecustomize_canary", "tokenizer", "config"):
        (directory / f"{module}.py").write_text(f"open({str(canary)!r}, 'w').close()")
    auto = {"AutoConfig": "configuration_canary.C", "AutoModelForCausalLM": "modeling_canary.M"}
    (directory / "config.json").write_text(json.dumps({"auto_map": auto, "trust_remote_code": True}))
    write_tokenizer(directory)
    script = (
        "import sys; from octavo.checkpoint import open_checkpoint;"
        "c = open_checkpoint(sys.argv[1]); c.text; list(c.chunks('w')); assert 'torch' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(Path(octavo.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert not canary.exists()
