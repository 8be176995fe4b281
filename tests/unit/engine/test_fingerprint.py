"""Equal where answers are equal, different where they may differ."""

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import llguidance
import pytest
import torch

from data.json_types import JsonObject
from octavo import LLM, version
from octavo.checkpoint import open_checkpoint
from octavo.engine.fingerprint import system_fingerprint
from octavo.kernels.library import KernelLibrary, find_library
from octavo.ops import select_ops

Fingerprint = Callable[..., str]


@pytest.fixture
def fingerprint(tiny_checkpoint: Path) -> Fingerprint:
    def of(path: Path = tiny_checkpoint, dtype: torch.dtype = torch.float32, kernels: str = "torch") -> str:
        return system_fingerprint(open_checkpoint(str(path)), select_ops("cpu", dtype, kernels=kernels))

    return of


def copied(checkpoint: Path, folder: Path) -> Path:
    return Path(shutil.copytree(checkpoint, folder))


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 64},
        {"page_size": 0},
        {"threads": 1},
        {"max_step_tokens": 16, "max_running": 4},
        {"prefix_caching": False},
        {"admission": "static"},
        {"max_model_len": 100},
        {"tape": False},
    ],
    ids=str,
)
def test_what_must_not_change_an_answer_does_not_change_it(
    tiny_checkpoint: Path, options: JsonObject
) -> None:
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", threads=2) as llm:
        usual = llm.facts.system_fingerprint
    changed: JsonObject = {"kv_memory": "4MiB", "threads": 2} | options
    with LLM(str(tiny_checkpoint), **changed) as llm:
        assert llm.facts.system_fingerprint == usual


def test_its_form(fingerprint: Fingerprint) -> None:
    word = fingerprint()
    assert word.startswith("fp_")
    assert len(word) == 15
    int(word[3:], 16)
    assert word == fingerprint()


def test_a_copy_is_the_same_checkpoint(
    fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    copy = copied(tiny_checkpoint, tmp_path / "elsewhere")
    (copy / "tokenizer_config.json").write_text("{}")  # the law is about token ids: text is not in it
    assert fingerprint(copy) == fingerprint()


def test_the_dtype(fingerprint: Fingerprint) -> None:
    assert fingerprint(dtype=torch.bfloat16) != fingerprint(dtype=torch.float32)


def test_the_instruction_set_and_the_kernels(fingerprint: Fingerprint) -> None:
    path = find_library()
    if path is None or len(KernelLibrary(path).isas) < 2:
        pytest.skip("needs the native library and two instruction sets")
    assert len({fingerprint(kernels=kernels) for kernels in ("torch", "portable", "auto")}) == 3


def test_another_build_of_the_kernels(
    fingerprint: Fingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_library()
    if path is None:
        pytest.skip("needs the native library")
    before = fingerprint(kernels="portable")
    rebuilt = tmp_path / "rebuilt.so"
    rebuilt.write_bytes(path.read_bytes() + b"\0")
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", str(rebuilt))
    assert fingerprint(kernels="portable") != before


def test_the_versions(fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(version, "__version__", "99")
    changed = fingerprint()
    monkeypatch.setattr(llguidance, "__version__", "99")
    changed_again = fingerprint()
    monkeypatch.setattr(torch, "__version__", "99")
    changed_torch = fingerprint()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.99"))
    assert len({before, changed, changed_again, changed_torch, fingerprint()}) == 5


def test_one_weight_of_a_fine_tune(fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path) -> None:
    tuned = copied(tiny_checkpoint, tmp_path / "tuned")
    content = bytearray((tuned / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tuned / "model.safetensors").write_bytes(content)
    assert fingerprint(tuned) != fingerprint()


def test_the_config(fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = copied(tiny_checkpoint, tmp_path / "other")
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert (other / "config.json").read_text() != config
    assert fingerprint(other) != fingerprint()
