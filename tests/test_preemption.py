"""Many requests in a KV pool that is far too small: all finish, and their tokens do not change."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from full_size import FULL
from octavo import LLM, SamplingParams

BLOCK = 4
NUM_REQUESTS = 64
NUM_ON_A_REAL_MODEL = NUM_REQUESTS if FULL else 16


def mixed_requests(
    vocab: int, max_tokens: int, num_requests: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return short and long requests, greedy and sampled, with and without shared prefixes, penalties and
    several choices."""
    draw = random.Random(64)
    shared = [draw.randrange(vocab) for _ in range(20)]
    prompts, params = [], []
    for number in range(num_requests):
        own = [draw.randrange(vocab) for _ in range(draw.randrange(1, 20))]
        prompts.append(shared[: draw.choice([0, BLOCK, 2 * BLOCK, len(shared)])] + own)
        params.append(
            SamplingParams(
                temperature=draw.choice([0.0, 0.8, 1.0]),
                top_p=draw.choice([1.0, 0.9]),
                top_k=draw.choice([0, 40]),
                repetition_penalty=draw.choice([1.0, 1.1]),
                presence_penalty=draw.choice([0.0, 0.5]),
                seed=number,
                n=draw.choice([1, 1, 1, 2]),
                max_tokens=draw.randrange(4, max_tokens),
                ignore_eos=True,
            )
        )
    return prompts, params


def run_against_solo(
    path: Path,
    *,
    max_tokens: int,
    blocks: int,
    bytes_per_token: int,
    prefix_caching: bool = True,
    num_requests: int = NUM_REQUESTS,
) -> None:
    pool = blocks * BLOCK * bytes_per_token
    with LLM(str(path), dtype="float32", kv_memory="256MiB", prefix_caching=False, max_step_tokens=0) as solo:
        vocab = min(solo.facts.vocab_size, 256)
        prompts, params = mixed_requests(vocab, max_tokens, num_requests)
        expected = [solo.generate([p], s)[0] for p, s in zip(prompts, params, strict=True)]
    with LLM(
        str(path),
        dtype="float32",
        kv_memory=pool,
        block_size=BLOCK,
        max_step_tokens=48,
        max_running=16,
        prefix_caching=prefix_caching,
    ) as crowded:
        outputs = crowded.generate(prompts, params)
        crowded.check()
        stats = crowded.stats()
    for ours, alone in zip(outputs, expected, strict=True):
        assert [c.token_ids for c in ours.choices] == [c.token_ids for c in alone.choices]
        assert [c.text for c in ours.choices] == [c.text for c in alone.choices]
    assert stats.preemptions >= num_requests // 4, f"the pool did not force preemption: {stats}"
    assert any(choice.num_preemptions for output in outputs for choice in output.choices)
    assert stats.num_running == stats.num_waiting == 0
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total == blocks
    assert prefix_caching or stats.blocks_free == blocks


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_sixty_four_requests_on_a_tiny_model(tiny_checkpoint: Path, prefix_caching: bool) -> None:
    run_against_solo(
        tiny_checkpoint,
        max_tokens=64,
        blocks=36,
        bytes_per_token=2 * 2 * 2 * 16 * 4,
        prefix_caching=prefix_caching,
    )


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_many_requests_on_a_real_model(assets: Callable[[str], Path]) -> None:
    run_against_solo(
        assets("smollm2-135m-instruct-q4_1.gguf"),
        max_tokens=20,
        blocks=18,
        bytes_per_token=30 * 2 * 3 * 64 * 4,
        num_requests=NUM_ON_A_REAL_MODEL,
    )
