"""A model small enough for every test."""

import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{{ reasoning_effort or '' }}{{ mood or '' }}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """Its tokens are the bytes, and four special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE})
    )


def write_tiny_llama(folder: Path) -> None:
    """A random Llama of 0.1 M parameters whose tokens are bytes: a whole checkpoint folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_byte_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=256,
        bos_token_id=None,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
