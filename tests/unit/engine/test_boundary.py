"""Isolation of failures: whatever fails in one request, the others get the same bits as without it, and the
engine continues. Model, kernels and scheduler are real."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest

import octavo.ops.native_ops
import octavo.runner.model_runner
from data.sampling_fields import SamplingFields
from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.kernels.library import find_library
from octavo.plan import SlotOpening, StepPlan, StepResult
from octavo.protocol import FailureCode, FinishReason, GenerateRequest, SamplingParams, TokenOutput
from octavo.runner.model_runner import ModelRunner
from octavo.sampling import NativeSampler, TorchSampler
from octavo.sampling.sampler import RowState

NUM_NEIGHBOURS = 8
NUM_TOKENS = 12
VICTIM_SEED = 666
STOP_IDS = (256,)

SAMPLERS = {"native": NativeSampler, "torch": lambda engine: TorchSampler()}

pytestmark = pytest.mark.skipif(
    find_library() is None, reason="only native kernels compute rows alike in any batch"
)


class Fault:
    """Raises in every call that involves the victim, after the first `spared` of them."""

    def __init__(self, spared: int) -> None:
        self.spared = spared
        self.has_struck = False
        self._slots: set[int] = set()  # of the victim, if any
        self._is_in_plan = False

    def watch(self, execute: Callable[..., StepResult]) -> Callable[..., StepResult]:
        """Wrap the execution of plans and record whether the victim is in the current one."""

        def watched(runner: ModelRunner, plan: StepPlan) -> StepResult:
            self._slots -= set(plan.closed)
            self._slots |= {opened.slot for opened in plan.opened if opened.params.seed == VICTIM_SEED}
            self._is_in_plan = any(piece.slot in self._slots for piece in plan.slices)
            return execute(runner, plan)

        return watched

    def around(
        self, function: Callable[..., object], concerns: Callable[..., bool] | None = None
    ) -> Callable[..., object]:
        """`concerns` decides by a call's arguments whether it involves the victim; default: by the plan."""

        def faulty(*arguments: object, **keywords: object) -> object:
            if self._is_in_plan if concerns is None else concerns(*arguments):
                if self.spared <= 0:
                    self.has_struck = True
                    raise RuntimeError("a fault")
                self.spared -= 1
            return function(*arguments, **keywords)

        return faulty


def of_victim(state: RowState, *_: object) -> bool:
    return state.params.seed == VICTIM_SEED


def opens_victim(_: RowState, opening: SlotOpening) -> bool:
    return bool(opening.params.seed == VICTIM_SEED)


def has_seed(seed: int, *_: object) -> bool:
    return seed == VICTIM_SEED


Answers = dict[str, list[object]]  # by request

# Every function that works for one request or for a batch with it. Owner None: the runner.
SITES: dict[str, tuple[object, str, Callable[..., bool] | None]] = {
    "opening a slot": (RowState, "__init__", opens_victim),
    "remembering a token": (RowState, "append", of_victim),
    "asking what is banned": (RowState, "bans_stop_at", of_victim),
    "noise": (octavo.sampling.sampler, "noise_key", has_seed),
    "noise of the native sampler": (octavo.sampling.native_sampler, "noise_key", has_seed),
    "building the batch": (octavo.runner.model_runner, "build_batch", None),
    "the model": (None, "_forward", None),
    "the vocabulary": (None, "_logits", None),
    "looking for bad numbers": (ModelRunner, "_unusable", None),
    "scoring the prompt": (ModelRunner, "_score_slice", None),
    "drawing": (TorchSampler, "sample_rows", None),
    "drawing natively": (NativeSampler, "sample_rows", None),
    "scoring": (TorchSampler, "score_rows", None),
    "scoring natively": (NativeSampler, "score_rows", None),
}

NATIVE_ONLY = ("noise of the native sampler", "drawing natively", "scoring natively")
TORCH_ONLY = ("noise", "drawing", "scoring")
PROMPT_ONLY = ("opening a slot", "scoring the prompt", "scoring", "scoring natively")  # done once or twice


def request(number: int, **params: Unpack[SamplingFields]) -> GenerateRequest:
    prompt = tuple(range(number, number + 20 + 5 * (number % 3)))
    given: SamplingFields = {"seed": number, "temperature": 0.5 * (number % 3), "max_tokens": NUM_TOKENS}
    return GenerateRequest(
        request_id=f"r{number}",
        prompt_ids=prompt,
        params=SamplingParams(**(given | params)),
        stop_ids=STOP_IDS,
    )


def neighbours() -> list[GenerateRequest]:
    more: list[SamplingFields] = [
        {},
        {"repetition_penalty": 1.3, "logprobs": 2},
        {"top_p": 0.9, "prompt_logprobs": 1},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "min_tokens": 4},
    ]
    return [request(number, **more[number % len(more)]) for number in range(NUM_NEIGHBOURS)]


def victim() -> GenerateRequest:
    return request(
        100,
        seed=VICTIM_SEED,
        temperature=0.9,
        repetition_penalty=1.2,
        logprobs=1,
        prompt_logprobs=1,
        min_tokens=6,
    )


def run(core: EngineCore, requests: list[GenerateRequest]) -> dict[str, list[TokenOutput]]:
    """Return all outputs without the fields that differ between runs."""
    for one in requests:
        core.handle(one)
    outputs: dict[str, list[TokenOutput]] = {one.request_id: [] for one in requests}
    while core.has_unfinished:
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
        core.check()
    stats = core.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.blocks_free + stats.blocks_idle == stats.blocks_total
    return outputs


def answers(outputs: dict[str, list[TokenOutput]]) -> Answers:
    return {
        name: [
            [part for output in parts for part in getattr(output, field)]
            for field in ("token_ids", "logprobs", "prompt_logprobs")
        ]
        + [parts[-1].finish, parts[-1].failure]
        for name, parts in outputs.items()
    }


def open_core(checkpoint: Path) -> EngineCore:
    options = EngineOptions(model=str(checkpoint), kv_memory=4 << 20, block_size=32, max_step_tokens=64)
    return build_engine(open_checkpoint(str(checkpoint)), options, progress=False)[0]


@pytest.fixture(scope="module")
def plain_answers(tiny_checkpoint: Path) -> dict[str, Answers]:
    """The answers of the neighbours without the victim, by sampler."""
    plain = {}
    for name, sampler in SAMPLERS.items():
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(octavo.ops.native_ops, "NativeSampler", sampler)
            plain[name] = answers(run(open_core(tiny_checkpoint), neighbours()))
    return plain


@pytest.mark.parametrize(
    ("site", "spared", "sampler"),
    [
        (site, spared, sampler)
        for site, spared, sampler in itertools.product(SITES, (0, 4), SAMPLERS)
        if site not in (TORCH_ONLY if sampler == "native" else NATIVE_ONLY)
        and not (spared and site in PROMPT_ONLY)
    ],
)
def test_a_fault_ends_one_request(
    tiny_checkpoint: Path,
    plain_answers: dict[str, Answers],
    monkeypatch: pytest.MonkeyPatch,
    *,
    site: str,
    spared: int,
    sampler: str,
) -> None:
    monkeypatch.setattr(octavo.ops.native_ops, "NativeSampler", SAMPLERS[sampler])
    plain = plain_answers[sampler]
    owner, name, concerns = SITES[site]
    fault = Fault(spared)
    monkeypatch.setattr(ModelRunner, "execute", fault.watch(ModelRunner.execute))
    core = open_core(tiny_checkpoint)
    owner = core._execute.__self__ if owner is None else owner  # type: ignore[attr-defined]
    monkeypatch.setattr(owner, name, fault.around(getattr(owner, name), concerns))
    mixed = neighbours()
    mixed.insert(NUM_NEIGHBOURS // 2, victim())
    disturbed = run(core, mixed)
    ended = disturbed.pop("r100")
    assert fault.has_struck
    assert ended[-1].finish is FinishReason.ERROR
    assert ended[-1].failure is not None
    assert ended[-1].failure.code is FailureCode.ENGINE_FAILED
    assert "a fault" not in ended[-1].failure.message, "clients read this"
    assert answers(disturbed) == plain
    assert answers(run(core, neighbours())) == plain, "also afterwards, with cached blocks"
