"""A worker executes plans on a tiny real model."""

from pathlib import Path

import pytest
import torch

from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.devices import resolve_device
from octavo.errors import ConfigError
from octavo.kernels.library import find_library
from octavo.ops import LayerKV, NativeOps
from octavo.plan import SequenceSlice, SlotOpening, StepPlan
from octavo.protocol import SamplingParams
from octavo.runner import Worker, start_worker

PROMPT = tuple(range(65, 85))


@pytest.fixture
def worker(tiny_checkpoint: Path) -> Worker:
    options = EngineOptions(kv_memory=1 << 20, block_size=8, max_running=4)
    return start_worker(open_checkpoint(str(tiny_checkpoint)), options, progress=False)


def opening(slot: int, token_ids: tuple[int, ...], prompt_logprobs: int | None = None) -> SlotOpening:
    params = SamplingParams(temperature=0, seed=0, prompt_logprobs=prompt_logprobs)
    return SlotOpening(slot, params, 0, (), len(token_ids), token_ids)


def plain_kv(worker: Worker) -> list[LayerKV]:
    """KV memory as torch tensors, which tests can write to."""
    layers = [layer for layer in worker.kv if isinstance(layer, LayerKV)]
    assert len(layers) == len(worker.kv)
    return layers


def whole(
    slot: int, token_ids: tuple[int, ...], blocks: tuple[int, ...], score: bool = False
) -> SequenceSlice:
    return SequenceSlice(slot, 0, token_ids, 0, blocks, 1, token_ids[1:] if score else ())


def test_non_finite_values_fail_only_their_own_sequence(worker: Worker) -> None:
    """Only slot 1 reads the non-finite KV values: slot 0 gets the same token as when alone."""
    alone = worker.runner.execute(StepPlan(1, (), (opening(0, PROMPT),), (whole(0, PROMPT, (0, 1, 2)),)))
    for layer in plain_kv(worker):
        layer.keys[9] = torch.nan
    openings = (opening(0, PROMPT), opening(1, PROMPT))
    poisoned = SequenceSlice(1, 8, PROMPT[8:], 0, (9, 4, 5), 1)
    both = worker.runner.execute(StepPlan(2, (0,), openings, (whole(0, PROMPT, (0, 1, 2)), poisoned)))
    assert both.slices[0].failure is None
    assert both.slices[0].token_ids == alone.slices[0].token_ids
    assert both.slices[1].failure is not None
    assert both.slices[1].token_ids == ()


def test_non_finite_values_give_the_same_error_alone_and_in_a_batch(worker: Worker) -> None:
    """A decode row is checked by its logits if all rows decode, and otherwise by its own values."""
    for layer in plain_kv(worker):
        layer.keys[9] = torch.nan
    poisoned = SequenceSlice(1, len(PROMPT) - 1, PROMPT[-1:], 0, (9, 4, 5), 1)
    alone = worker.runner.execute(StepPlan(1, (), (opening(1, PROMPT),), (poisoned,)))
    openings = (opening(0, PROMPT), opening(1, PROMPT))
    both = worker.runner.execute(StepPlan(2, (1,), openings, (whole(0, PROMPT, (0, 1, 2)), poisoned)))
    assert alone.slices[0].failure is not None
    assert both.slices[1] == alone.slices[0]
    assert both.slices[0].failure is None


def test_non_finite_values_are_detected_without_sampling(worker: Worker) -> None:
    """Also in the middle of a prompt: such blocks must not reach the prefix tree."""
    for layer in plain_kv(worker):
        layer.values[0] = torch.inf
    middle = SequenceSlice(0, 8, PROMPT[8:16], 0, (0, 1), 0)
    result = worker.runner.execute(StepPlan(1, (), (opening(0, PROMPT),), (middle,)))
    assert result.slices[0].failure is not None


def test_a_table_edit_replaces_the_tail(worker: Worker) -> None:
    """A duplicate block that was replaced by the tree's copy is read at its new location."""
    first = StepPlan(1, (), (opening(0, PROMPT),), (whole(0, PROMPT, (0, 1, 2)),))
    token = worker.runner.execute(first).slices[0].token_ids
    for layer in plain_kv(worker):
        layer.keys[5], layer.values[5] = layer.keys[1].clone(), layer.values[1].clone()
        layer.keys[1] = torch.nan
    again = SequenceSlice(0, len(PROMPT) - 1, PROMPT[-1:], 1, (5, 2), 1)
    result = worker.runner.execute(StepPlan(2, (), (opening(0, PROMPT),), (again,)))
    assert result.slices[0].token_ids == token


def test_prompt_scores_are_the_models_own_logprobs(worker: Worker) -> None:
    plan = StepPlan(1, (), (opening(0, PROMPT, prompt_logprobs=2),), (whole(0, PROMPT, (0, 1, 2), True),))
    scores = worker.runner.execute(plan).slices[0].prompt_logprobs
    assert [score.token_id for score in scores] == list(PROMPT[1:])
    for score in scores:
        assert len(score.top) == 2
        assert score.top[0][1] >= score.top[1][1]
        assert score.logprob <= score.top[0][1]


def test_the_error_names_an_unavailable_device() -> None:
    with pytest.raises(ConfigError, match="--device cpu"):
        resolve_device("cuda:7")


@pytest.mark.parametrize(("block_size", "native"), [(32, True), (64, True), (0, True), (8, False)])
def test_native_kernels_need_a_block_size_divisible_by_32(
    tiny_checkpoint: Path, block_size: int, native: bool
) -> None:
    checkpoint = open_checkpoint(str(tiny_checkpoint))
    options = EngineOptions(kv_memory=1 << 20, block_size=block_size, kernels="auto")
    worker = start_worker(checkpoint, options, progress=False)
    assert isinstance(worker.ops, NativeOps) is (native and find_library() is not None)
    assert worker.kv_plan.block_size % (32 if native else 8) == 0
    if not native:
        with pytest.raises(ConfigError, match="not a multiple of 32"):
            start_worker(checkpoint, EngineOptions(block_size=8, kernels="portable"), progress=False)
