"""Tiny random models of every family compared with transformers in float32, with blocks in random order.

The blocks are initialised with NaN, so reading a row that was never written shows in the logits.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypedDict

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from octavo.checkpoint import Checkpoint, open_checkpoint
from octavo.checkpoint.load import load_weights
from octavo.models import gemma
from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.registry import Model, build_model
from octavo.ops import Batch, BatchSequence, LayerKV, select_ops

_VOCAB = 101
_LENGTH = 45
_WINDOW = 9
_TOLERANCE = 1e-4

_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,  # keeps, interpolates and divides at least one frequency each
}
_GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


class _Sizes(TypedDict):
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    eos_token_id: int | None
    bos_token_id: int | None
    pad_token_id: int | None


class _Heads(TypedDict):
    num_attention_heads: int
    num_key_value_heads: int


_SIZES: _Sizes = {
    "vocab_size": _VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def _heads(num_heads: int, num_kv_heads: int) -> _Heads:
    return {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}


_CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama2": lambda: transformers.LlamaConfig(**_SIZES, **_heads(4, 4)),
    "llama3": lambda: transformers.LlamaConfig(
        **_SIZES, **_heads(4, 2), rope_parameters={**_LLAMA3_SCALING, "rope_theta": 500_000.0}
    ),
    "llama-biases": lambda: transformers.LlamaConfig(
        **_SIZES, **_heads(4, 2), attention_bias=True, mlp_bias=True
    ),
    "smollm2": lambda: transformers.LlamaConfig(
        **(_SIZES | {"hidden_size": 72}), **_heads(9, 3), tie_word_embeddings=True
    ),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, **_heads(4, 2), sliding_window=_WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES, **_heads(4, 2), tie_word_embeddings=True),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **_SIZES, **_heads(4, 2), use_sliding_window=True, sliding_window=_WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, **_heads(4, 2), head_dim=20),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **(_SIZES | {"num_hidden_layers": 4}),
        **_heads(4, 1),
        head_dim=20,
        query_pre_attn_scalar=30,
        sliding_window=_WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=_GEMMA_ROPE,
    ),
}


@dataclass
class _Run:
    """Sequences in blocks of random order, and the logits of all their positions."""

    model: Model
    block_size: int
    dtype: torch.dtype = torch.float32
    kv: list[LayerKV] = field(init=False)
    free_blocks: list[int] = field(init=False)
    blocks: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, num_blocks = self.model.config, 64
        shape = (num_blocks, self.block_size, config.num_kv_heads, config.head_dim)
        self.kv = [
            LayerKV(*(torch.full(shape, torch.nan, dtype=self.dtype) for _ in range(2)))
            for _ in range(config.num_layers)
        ]
        self.free_blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3)).tolist()

    def step(self, slices: dict[str, Sequence[int]]) -> dict[str, torch.Tensor]:
        """Compute the next tokens of some sequences in one batch; return float32 [tokens, vocab] for each."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sequences = []
        for name, tokens in slices.items():
            start = self.computed.get(name, 0)
            context = start + len(tokens)
            blocks = self.blocks.setdefault(name, [])
            while len(blocks) * self.block_size < context:
                blocks.append(self.free_blocks.pop())
            sequences.append(BatchSequence(len(token_ids), len(tokens), context, torch.tensor(blocks)))
            token_ids += tokens
            positions += range(start, context)
            slots += (
                blocks[p // self.block_size] * self.block_size + p % self.block_size
                for p in range(start, context)
            )
            self.computed[name] = context
        columns = torch.tensor([token_ids, positions, slots])
        batch = Batch.of(columns[0], columns[1], columns[2], tuple(sequences), self.block_size)
        hidden = self.model.forward(batch, self.kv)
        logits = self.model.logits(hidden).split([len(tokens) for tokens in slices.values()])
        return dict(zip(slices, logits, strict=True))


@dataclass(frozen=True)
class _Pair:
    checkpoint: Checkpoint
    ours: Model
    theirs: transformers.PreTrainedModel

    def reference(self, tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.theirs(torch.tensor([tokens])).logits
            return logits[0]


def _save_random_model(config: transformers.PreTrainedConfig, folder: Path) -> transformers.PreTrainedModel:
    """Save a model with weights so large that every part affects the logits; norms and biases are random."""
    model: transformers.PreTrainedModel
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
            else:
                parameter.add_(noise * 0.3)
    model.save_pretrained(folder)
    vocab = {f"t{index}": index for index in range(_VOCAB)}
    Tokenizer(models.WordLevel(vocab, unk_token="t0")).save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _load(checkpoint: Checkpoint, config: ModelConfig) -> Model:
    model, targets = build_model(config, select_ops("cpu", torch.float32), {})
    load_weights(checkpoint, targets, progress=False)
    return model


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], _Pair]:
    @cache
    def make(family: str) -> _Pair:
        folder = tmp_path_factory.mktemp(family)
        theirs = _save_random_model(_CONFIGS[family](), folder)
        checkpoint = open_checkpoint(checkpoint_path=folder)
        return _Pair(checkpoint, _load(checkpoint, ModelConfig.from_huggingface(checkpoint.config)), theirs)

    return make


@pytest.fixture(params=_CONFIGS)
def pair(request: pytest.FixtureRequest, make_pair: Callable[[str], _Pair]) -> _Pair:
    return make_pair(request.param)


def _tokens(length: int, seed: int) -> list[int]:
    return torch.randint(_VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def _assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == torch.float32
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.5, "the logits are too small to detect errors"
    worst = (ours - theirs).abs().max().item()
    print(f"largest difference {worst:.1e}, largest logit {theirs.abs().max().item():.1f}")
    assert worst < _TOLERANCE


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("chunk", [_LENGTH, 7, 1])
def test_logits_match_at_every_position(pair: _Pair, chunk: int, block_size: int) -> None:
    tokens = _tokens(_LENGTH, seed=1)
    run = _Run(pair.ours, block_size)
    rows = [run.step({"a": tokens[at : at + chunk]})["a"] for at in range(0, _LENGTH, chunk)]
    _assert_close(torch.cat(rows), pair.reference(tokens))


def test_sequences_in_one_batch_are_independent(pair: _Pair) -> None:
    first, second = _tokens(_LENGTH, seed=1), _tokens(30, seed=2)
    run = _Run(pair.ours, block_size=4)
    early = run.step({"first": first[:11]})
    middle = run.step({"second": second[:13], "first": first[11:12]})
    late = run.step({"first": first[12:], "second": second[13:]})
    _assert_close(torch.cat([early["first"], middle["first"], late["first"]]), pair.reference(first))
    _assert_close(torch.cat([middle["second"], late["second"]]), pair.reference(second))


def test_greedy_tokens_match(pair: _Pair) -> None:
    prompt, num_new = _tokens(10, seed=4), 64
    theirs = pair.theirs.generate(  # type: ignore[operator]
        torch.tensor([prompt]), max_new_tokens=num_new, do_sample=False
    )
    run = _Run(pair.ours, block_size=16)
    ours = list(prompt)
    for _ in range(num_new):
        ours.append(int(run.step({"a": ours[run.computed.get("a", 0) :]})["a"][-1].argmax()))
    assert ours == theirs[0].tolist()


def _each_layer(change: Callable[[LayerConfig], LayerConfig]) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: replace(config, layers=tuple(change(layer) for layer in config.layers))


def _window(by: int) -> Callable[[ModelConfig], ModelConfig]:
    return _each_layer(lambda layer: replace(layer, window=layer.window and layer.window + by))


def _one_rope(config: ModelConfig) -> ModelConfig:
    return replace(
        config, layers=tuple(replace(layer, rope=config.layers[0].rope) for layer in config.layers)
    )


_unscaled_rope = _each_layer(lambda layer: replace(layer, rope=replace(layer.rope, scaling=None)))

_MUTANTS = {
    "window one longer": ("mistral", _window(+1)),
    "window one shorter": ("mistral", _window(-1)),
    "gemma window one longer": ("gemma3", _window(+1)),
    "gemma window one shorter": ("gemma3", _window(-1)),
    "gemma window on the wrong layers": ("gemma3", lambda c: replace(c, layers=c.layers[::-1])),
    "gemma without its second rope": ("gemma3", _one_rope),
    "gemma without linear scaling": ("gemma3", _unscaled_rope),
    "gemma scaled by the head size": ("gemma3", lambda c: replace(c, attention_scale=c.head_dim**-0.5)),
    "llama without rope scaling": ("llama3", _unscaled_rope),
    "another rope base": (
        "qwen3",
        _each_layer(lambda layer: replace(layer, rope=replace(layer.rope, theta=2 * layer.rope.theta))),
    ),
    "another epsilon": ("llama2", lambda c: replace(c, norm_eps=1e-3)),
}


def _assert_differs(mutant: Model, pair: _Pair) -> None:
    tokens = _tokens(_LENGTH, seed=1)
    difference = (_Run(mutant, 16).step({"a": tokens})["a"] - pair.reference(tokens)).abs().max()
    assert difference > 10 * _TOLERANCE


@pytest.mark.parametrize("name", _MUTANTS)
def test_a_wrong_config_would_be_detected(name: str, make_pair: Callable[[str], _Pair]) -> None:
    family, change = _MUTANTS[name]
    pair = make_pair(family)
    _assert_differs(_load(pair.checkpoint, change(pair.ours.config)), pair)


def test_a_missing_norm_offset_would_be_detected(
    make_pair: Callable[[str], _Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair("gemma3")
    monkeypatch.setattr(gemma, "_NORM_OFFSET", 0.0)
    _assert_differs(_load(pair.checkpoint, pair.ours.config), pair)


def test_bfloat16_is_as_close_to_float32_as_in_transformers(pair: _Pair) -> None:
    model, targets = build_model(pair.ours.config, select_ops("cpu", torch.bfloat16), {})
    load_weights(pair.checkpoint, targets, progress=False)
    tokens = _tokens(_LENGTH, seed=1)
    exact = pair.reference(tokens)
    with torch.inference_mode():
        rounded = deepcopy(pair.theirs).to(torch.bfloat16)  # type: ignore[arg-type]
        theirs = rounded(torch.tensor([tokens])).logits[0].float()
    ours = _Run(model, 16, torch.bfloat16).step({"a": tokens})["a"]
    our_error, their_error = (ours - exact).std().item(), (theirs - exact).std().item()
    print(f"standard deviation from float32: ours {our_error:.4f}, transformers' {their_error:.4f}")
    assert ours.dtype == torch.float32
    assert our_error < 1.1 * their_error
