"""The system fingerprint: equal if answers are equal, different if they may differ."""

import importlib.metadata
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import llguidance
import pytest
import torch

from data.json_types import JsonObject
from octavo import LLM, version
from octavo.checkpoint import open_checkpoint
from octavo.engine.fingerprint import numeric_settings, system_fingerprint
from octavo.kernels.library import KernelLibrary, find_library
from octavo.ops import NativeOps, select_ops

Fingerprint = Callable[..., str]

needs_library = pytest.mark.skipif(find_library() is None, reason="no native library was built")


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
        {"block_size": 64},
        {"block_size": 0},
        {"threads": 1},
        {"max_step_tokens": 16, "max_running": 4},
        {"prefix_caching": False},
        {"admission": "static"},
        {"max_model_len": 100},
        {"tape": False},
    ],
    ids=str,
)
def test_options_that_do_not_affect_answers_do_not_change_it(
    tiny_checkpoint: Path, options: JsonObject
) -> None:
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", threads=2) as llm:
        usual = llm.facts.system_fingerprint
    changed: JsonObject = {"kv_memory": "4MiB", "threads": 2} | options
    with LLM(str(tiny_checkpoint), **changed) as llm:
        assert llm.facts.system_fingerprint == usual


def test_format(fingerprint: Fingerprint) -> None:
    word = fingerprint()
    assert word.startswith("fp_")
    assert len(word) == 15
    int(word[3:], 16)
    assert word == fingerprint()


def test_a_copied_checkpoint_has_the_same_fingerprint(
    fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    copy = copied(tiny_checkpoint, tmp_path / "elsewhere")
    (copy / "tokenizer_config.json").write_text("{}")  # the guarantee covers token ids, not text
    assert fingerprint(copy) == fingerprint()


def test_depends_on_the_dtype(fingerprint: Fingerprint) -> None:
    assert fingerprint(dtype=torch.bfloat16) != fingerprint(dtype=torch.float32)


@needs_library
def test_does_not_depend_on_the_instruction_set(fingerprint: Fingerprint) -> None:
    path = find_library()
    assert path is not None
    names = ["auto", *(isa.name.lower() for isa in KernelLibrary(path).isas)]
    words = {fingerprint(kernels=name) for name in names}
    assert len(words) == 1


@needs_library
def test_the_native_fingerprint_does_not_depend_on_the_machine(
    fingerprint: Fingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_library()
    assert path is not None
    before = fingerprint(kernels="portable")
    rebuilt = tmp_path / "rebuilt.so"
    rebuilt.write_bytes(path.read_bytes() + b"\0")
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", str(rebuilt))
    change_the_machine(monkeypatch)
    assert fingerprint(kernels="portable") == before


@needs_library
def test_depends_on_the_arithmetic_version(fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(kernels="portable")
    monkeypatch.setattr(KernelLibrary, "arithmetic", 99)
    assert fingerprint(kernels="portable") != before


@needs_library
def test_numeric_settings_of_the_native_path(tiny_checkpoint: Path) -> None:
    """An extra setting would split one function into two fingerprints; a missing one would merge two."""
    ops = select_ops("cpu", torch.bfloat16, kernels="portable")
    assert isinstance(ops, NativeOps)
    assert numeric_settings(open_checkpoint(str(tiny_checkpoint)), ops) == {
        "arithmetic": ops.pool.library.arithmetic,
        "dtype": "torch.bfloat16",
        "kv_dtype": "torch.bfloat16",
        "grammars": llguidance.__version__,
        "dequantised": None,
    }


@needs_library
def test_torch_and_native_kernels_differ(fingerprint: Fingerprint) -> None:
    assert fingerprint(kernels="torch") != fingerprint(kernels="portable")


@pytest.mark.parametrize("kernels", ["torch", pytest.param("portable", marks=needs_library)])
def test_depends_on_the_grammar_library(
    fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    before = fingerprint(kernels=kernels)
    monkeypatch.setattr(llguidance, "__version__", "99")
    assert fingerprint(kernels=kernels) != before


def test_depends_on_the_dequantiser_of_gguf_files(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = select_ops("cpu", torch.float32)
    plain = open_checkpoint(str(tiny_checkpoint))
    quantised = replace(plain, format="gguf")
    before = system_fingerprint(plain, ops), system_fingerprint(quantised, ops)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: f"{package} 99")
    assert system_fingerprint(plain, ops) == before[0]
    assert system_fingerprint(quantised, ops) != before[1]


def test_the_torch_fingerprint_depends_on_the_machine(
    fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [fingerprint(), *(fingerprint() for _ in change_the_machine_step_by_step(monkeypatch))]
    assert len(set(seen)) == len(seen) == 5


def change_the_machine_step_by_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(version, "__version__", "99")
    yield
    monkeypatch.setattr(torch, "__version__", "99")
    yield
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.99"))
    yield
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SVE99")
    yield


def change_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in change_the_machine_step_by_step(monkeypatch):
        pass


def test_depends_on_the_weights(fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path) -> None:
    tuned = copied(tiny_checkpoint, tmp_path / "tuned")
    content = bytearray((tuned / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tuned / "model.safetensors").write_bytes(content)
    assert fingerprint(tuned) != fingerprint()


def test_depends_on_the_config(fingerprint: Fingerprint, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = copied(tiny_checkpoint, tmp_path / "other")
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert (other / "config.json").read_text() != config
    assert fingerprint(other) != fingerprint()
