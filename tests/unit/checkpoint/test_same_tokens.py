"""A draft model must have the tokens of the large one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.checkpoint import open_checkpoint
from octavo.checkpoint.same_tokens import check_same_tokens
from octavo.errors import ConfigError


def changed(folder: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a copy of a checkpoint with another tokenizer."""
    shutil.copytree(folder, copy)
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return copy


def exchange(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def pad(content: dict[str, Any]) -> None:
    content["added_tokens"].append({**content["added_tokens"][-1], "id": 260, "content": "<|unused|>"})


def test_other_tokens_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = changed(tiny_checkpoint, tmp_path / "other", exchange)
    with pytest.raises(ConfigError, match=r"2 mean different texts, such as \d+ \('[ab]' and '[ab]'\)"):
        check_same_tokens(open_checkpoint(str(tiny_checkpoint)), open_checkpoint(str(other)))
    with pytest.raises(ConfigError, match="cannot draft for"):
        LLM(str(tiny_checkpoint), kv_memory="4MiB", speculate=f"draft:{other}")


def test_padding_may_differ(tiny_checkpoint: Path, tmp_path: Path) -> None:
    padded = changed(tiny_checkpoint, tmp_path / "padded", pad)
    check_same_tokens(open_checkpoint(str(tiny_checkpoint)), open_checkpoint(str(padded)))
    check_same_tokens(open_checkpoint(str(padded)), open_checkpoint(str(tiny_checkpoint)))


def test_a_draft_model_with_more_or_fewer_logits_drafts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Its checkpoint may be padded to another number of rows."""
    import torch
    from safetensors.torch import load_file, save_file

    padded = shutil.copytree(tiny_checkpoint, tmp_path / "padded")
    weights = load_file(padded / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], torch.zeros(28, weights[name].shape[1])])
    save_file(weights, padded / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((padded / "config.json").read_text())
    (padded / "config.json").write_text(json.dumps(config | {"vocab_size": 288}))
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=40, ignore_eos=True)
    for large, small in ((padded, tiny_checkpoint), (tiny_checkpoint, padded)):
        answers = []
        for speculate in ("off", f"draft:{small}"):
            with LLM(str(large), kv_memory="4MiB", speculate=speculate) as llm:
                answers.append(llm.generate(["It was a"], params)[0].token_ids)
                drafted = llm.stats().tokens_drafted
        assert answers[0] == answers[1]
        assert drafted > 0
