"""A model with cached packed weights gives the same answers as one that packed them itself."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.checkpoint import load
from octavo.kernels.library import find_library

pytestmark = pytest.mark.skipif(find_library() is None, reason="the native library is not built")

Answers = list[tuple[object, object]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    return tmp_path / "packed"


@pytest.fixture
def ask(
    tiny_checkpoint: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> Callable[..., tuple[Answers, str]]:
    """Return the answers of a new engine and its log line about the weights."""

    def ask(model: Path = tiny_checkpoint, **options: Any) -> tuple[Answers, str]:
        caplog.clear()
        with caplog.at_level(logging.INFO), LLM(str(model), kv_memory="4MiB", **options) as llm:
            params = SamplingParams(temperature=0.8, seed=1, max_tokens=12, logprobs=3)
            outputs = llm.generate(["one", "and another"], params)
        answers: Answers = [(output.choices[0].token_ids, output.choices[0].logprobs) for output in outputs]
        (said,) = [record.message for record in caplog.records if record.message.startswith("weights of")]
        return answers, said

    return ask


Ask = Callable[..., tuple[Answers, str]]


def test_the_second_start_maps_the_weights_packed_by_the_first(ask: Ask, cache: Path) -> None:
    alone, said = ask(weight_cache_size=0)
    assert "mapped" not in said
    assert "kept" not in said
    assert not cache.exists()
    first, said = ask()
    assert "kept for the next start" in said
    second, said = ask()
    assert "mapped from the cache" in said
    assert alone == first == second
    assert len(list(cache.glob("*.packed"))) == 1


def test_an_altered_file_is_packed_again(ask: Ask, cache: Path) -> None:
    first, _ = ask()
    (path,) = cache.glob("*.packed")
    with path.open("r+b") as file:
        file.seek(-5000, 2)
        file.write(b"accident")
    again, said = ask()
    assert "kept for the next start" in said
    assert again == first
    assert "mapped from the cache" in ask()[1]


def test_a_copied_checkpoint_shares_the_cache_and_a_different_one_does_not(
    ask: Ask, cache: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    ask()
    copied = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copied)
    assert "mapped from the cache" in ask(copied)[1]
    (weights,) = copied.glob("*.safetensors")
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        (last,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert "kept for the next start" in ask(copied)[1]
    assert len(list(cache.glob("*.packed"))) == 2


def test_every_storage_format_has_its_own_file(ask: Ask, cache: Path) -> None:
    ways: list[dict[str, Any]] = [{"dtype": "float32"}, {"dtype": "bfloat16"}]
    ways += [{"dtype": "bfloat16", "quantize": scheme} for scheme in ("int8", "int4")]
    for way in ways:
        alone, _ = ask(**way, weight_cache_size=0)
        first, said = ask(**way)
        assert "kept for the next start" in said
        second, said = ask(**way)
        assert "mapped from the cache" in said
        assert alone == first == second
    assert len(list(cache.glob("*.packed"))) == len(ways)


def test_changed_code_packs_again(ask: Ask, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed code may read the same file differently."""
    ask()
    monkeypatch.setattr(load, "_code_hash", lambda: "another")
    assert "kept for the next start" in ask()[1]


def test_plain_torch_packs_nothing(ask: Ask, cache: Path) -> None:
    assert "mapped" not in ask(kernels="torch")[1]
    assert not cache.exists()
