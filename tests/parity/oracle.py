"""Transformers' reading of a GGUF file, in float32. It takes a minute, so tests of one file share it."""

from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


@lru_cache(maxsize=1)  # one at a time: a model takes gigabytes
def oracle_model(file: Path) -> PreTrainedModel:
    """Tests that ask for the same file belong to the same xdist_group, and so to one process."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return model
