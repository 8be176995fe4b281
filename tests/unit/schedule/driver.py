"""A scheduler with a worker that always samples the same token."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypedDict, Unpack

import msgspec

from data.sampling_fields import SamplingFields
from octavo.cache import KVManager
from octavo.drafting import Speculation
from octavo.plan import DraftPass, SequenceSlice, SliceResult, StepPlan, StepResult
from octavo.protocol import (
    Failure,
    FailureCode,
    GenerateRequest,
    SamplingParams,
    TokenLogprob,
    TokenOutput,
)
from octavo.schedule import UNLIMITED, AdmissionPolicy, DraftPolicy, Scheduler, SchedulerConfig

TOKEN = 9
STEP_SECONDS = 0.25  # exact in binary


class RequestFields(TypedDict, total=False):
    choice: int
    stop_ids: tuple[int, ...]
    priority: int
    tenant: str
    weight: float
    rank: int
    deadline: float | None
    cache_salt: str
    resume_ids: tuple[int, ...]


class Driver:
    """Runs a scheduler step by step, with requests identified by name."""

    def __init__(
        self,
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        max_running: int = 8,
        max_step_tokens: int = UNLIMITED,
        max_model_len: int = 64,
        admission: AdmissionPolicy = AdmissionPolicy.CONTINUOUS,
        prefix_caching: bool = True,
        speculation: Speculation | None = None,
        draft_policy: DraftPolicy = DraftPolicy.WORTH,
        seconds_of: Callable[[StepPlan], float] = lambda plan: STEP_SECONDS,
        drafts_of: Callable[[SequenceSlice], tuple[int, ...]] | None = None,
        draft_context: int | None = None,
    ) -> None:
        """`drafts_of`: what the draft model drafts for a slice, in one pass per token."""
        self.kv = KVManager(num_blocks, block_size, prefix_caching=prefix_caching)
        config = SchedulerConfig(
            max_running,
            max_model_len,
            max_step_tokens,
            admission,
            draft_policy=draft_policy,
            draft_context=0 if drafts_of is None else draft_context or max_model_len,
        )
        self.scheduler = Scheduler(config, self.kv, speculation)
        self._seconds_of = seconds_of
        self._drafts_of = drafts_of
        self.pass_seconds = 0.0
        self.draft_model_failed = False
        self.outputs: list[TokenOutput] = []
        self.now = 0.0
        self._owner_of_slot: dict[int, str] = {}
        self._num_tokens: dict[int, int] = {}  # by slot
        self._names: list[str] = []

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        params: SamplingFields | None = None,
        **fields: Unpack[RequestFields],
    ) -> None:
        if name not in self._names:
            self._names.append(name)
        request = GenerateRequest(
            request_id=name,
            prompt_ids=tuple(prompt),
            params=SamplingParams(
                **({"max_tokens": 8} | (params or SamplingFields()) | {"seed": self._names.index(name)})
            ),
            **fields,
        )
        self.scheduler.add(request, self.now)

    def step(self, fails: str = "") -> dict[str, SequenceSlice]:
        """Run one step and return its slices by request name (and choice, if not the first)."""
        plan = self.scheduler.schedule(self.now)
        for opening in plan.opened:
            assert opening.params.seed is not None
            name = self._names[opening.params.seed]
            self._owner_of_slot[opening.slot] = f"{name}/{opening.choice}" if opening.choice else name
            self._num_tokens[opening.slot] = len(opening.token_ids)
        slices = {self._owner_of_slot[piece.slot]: piece for piece in plan.slices}
        computed = {name: self._with_drafts(piece) for name, piece in slices.items()}
        results = [self._answer(piece, name == fails) for name, piece in computed.items()]
        granted = [name for name, piece in slices.items() if piece.num_granted]
        num_passes = max([computed[name].num_drafted for name in granted], default=0)
        passes = (DraftPass(len(granted), self.pass_seconds),) * num_passes
        computed_plan = msgspec.structs.replace(plan, slices=tuple(computed.values()))
        self.now += self._seconds_of(computed_plan) + num_passes * self.pass_seconds
        result = StepResult(tuple(results), (), passes, self.draft_model_failed)
        self.scheduler.apply(plan, result, self.now)
        self.outputs += self.scheduler.drain()
        self.scheduler.check()
        self.plan: StepPlan = plan
        return slices

    def _with_drafts(self, piece: SequenceSlice) -> SequenceSlice:
        """Return the slice as it is computed."""
        if not piece.num_granted or self.draft_model_failed:
            return piece
        assert self._drafts_of is not None
        assert not piece.num_drafted
        return piece.with_drafts(self._drafts_of(piece)[: piece.num_granted])

    def _answer(self, piece: SequenceSlice, fails: bool) -> SliceResult:
        if fails:
            return SliceResult(failure=Failure(FailureCode.ENGINE_FAILED, "broken"))
        scores = tuple(TokenLogprob(token, -1.0) for token in piece.score_ids)
        if not piece.num_sampled:
            assert not piece.num_drafted
            return SliceResult((), (), scores)
        assert piece.start + piece.num_known == self._num_tokens[piece.slot], "it follows no known token"
        num_accepted = sum(1 for _ in takewhile(TOKEN.__eq__, piece.draft_ids))
        self._num_tokens[piece.slot] += num_accepted + 1
        return SliceResult(
            (TOKEN,) * (num_accepted + 1),
            (),
            scores,
            num_drafted=piece.num_drafted,
            num_accepted=num_accepted,
        )

    def finished(self) -> dict[str, str]:
        return {output.request_id: str(output.finish) for output in self.outputs if output.finish}

    def run(self) -> None:
        for _ in range(500):
            if not self.scheduler.has_unfinished:
                return
            self.step()
        raise AssertionError("it does not end")


def computed(slices: dict[str, SequenceSlice]) -> dict[str, tuple[int, int]]:
    """Return the range of positions that each slice computes."""
    return {name: (piece.start, piece.start + len(piece.token_ids)) for name, piece in slices.items()}


Make = type[Driver]
Computed = Callable[[dict[str, SequenceSlice]], dict[str, tuple[int, int]]]
