"""Prompts have exact lengths, are reproducible, and do not hit a prefix cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bench.serve.prompts import PromptVocabulary, plan_requests
from octavo.bench.serve.words import WORDS
from octavo.bench.serve.workload import WORKLOADS
from octavo.checkpoint import open_checkpoint
from octavo.text.tokenizer import Tokenizer

SMALL = PromptVocabulary(tuple(range(7, 60)), WORDS)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(WORKLOADS)), st.integers(0, 1 << 40))
def test_a_plan_is_a_function_of_workload_and_seed(name: str, seed: int) -> None:
    workload = WORKLOADS[name]
    plan = plan_requests(workload, seed)
    assert plan == plan_requests(workload, seed)
    assert len(plan) == workload.num_requests
    assert [one.number for one in plan] == list(range(len(plan)))
    assert all(len(one.token_ids(SMALL)) == one.prompt_tokens for one in plan)
    beginnings = {tuple(one.token_ids(SMALL))[: workload.shared] for one in plan}
    assert len(beginnings) == 1


def test_prompts_differ_after_the_shared_prefix() -> None:
    for workload in WORKLOADS.values():
        plans = [plan_requests(workload, seed) for seed in range(3)]
        own = [
            tuple(one.token_ids(SMALL))[workload.shared :][:8]
            for plan in plans
            for one in plan
            if one.prompt_tokens - workload.shared >= 8
        ]
        assert len(set(own)) == len(own)
        if workload.shared:
            assert len({tuple(plan[0].token_ids(SMALL)[:8]) for plan in plans}) == len(plans)


def test_tokens_are_drawn_uniformly_from_the_vocabulary() -> None:
    plan = plan_requests(WORKLOADS["chunked_prefill"], 5)
    ids = [token for one in plan for token in one.token_ids(SMALL)]
    counts = [ids.count(token) for token in SMALL.token_ids]
    assert min(counts) > 0.7 * len(ids) / len(counts)
    assert max(counts) < 1.4 * len(ids) / len(counts)


@pytest.mark.assets
@pytest.mark.parametrize("name", ["tokenizer-llama3.2", "tokenizer-gemma3", "tokenizer-gpt2"])
def test_text_prompts_have_the_exact_number_of_tokens(name: str, assets: Callable[[str], Path]) -> None:
    from octavo.text.huggingface import text_assets_from_directory

    tokenizer = Tokenizer(text_assets_from_directory(assets(name)))
    _check_exact(tokenizer)


@pytest.mark.assets
def test_text_prompts_have_the_exact_number_of_tokens_with_a_gguf_tokenizer(
    assets: Callable[[str], Path],
) -> None:
    _check_exact(Tokenizer(open_checkpoint(str(assets("smollm2-135m-instruct-q4_1.gguf"))).text))


def _check_exact(tokenizer: Tokenizer) -> None:
    vocabulary = PromptVocabulary.of_words(lambda text: tokenizer.encode(text, add_special_tokens=False))
    assert len(vocabulary.words) > len(WORDS) / 2
    assert not tokenizer.special_ids & set(vocabulary.token_ids)
    for one in plan_requests(WORKLOADS["paged_attention"], 3):
        text = one.text(vocabulary)
        assert len(tokenizer.encode(text, add_special_tokens=False)) == one.prompt_tokens
