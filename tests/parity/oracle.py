"""GGUF files loaded by transformers in float32. Loading takes a minute, so tests of one file share it."""

from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


@lru_cache(maxsize=1)  # one at a time: a model takes gigabytes
def oracle_model(file: Path) -> PreTrainedModel:
    """Tests of the same file are in the same xdist_group, so they run in one process."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return model
