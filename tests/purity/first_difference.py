"""Finds where two runs of a request diverge: the first layer and position whose numbers differ.

Both runs are replayed from the plans of their steps, kernel by kernel from Python, with the same batches,
chunks and blocks. Wrapped ops report the result of each call of a forward pass, row by row. A row is a
function of the tokens up to it, so every row whose tokens are a prefix of the request's is compared, also if
another request computed it and the prefix cache supplied its block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from octavo.checkpoint import open_checkpoint
from octavo.checkpoint.load import load_weights
from octavo.models.config import ModelConfig
from octavo.models.registry import build_model
from octavo.ops import Batch, Ops, select_ops
from octavo.plan import StepPlan
from octavo.runner.batch_input import build_batch
from octavo.runner.slots import Slots

RECORDED = (
    *("embedding", "linear", "logits", "add", "rms_norm", "add_rms_norm", "rope", "attention"),
    *("swiglu", "geglu"),
)
PARTS = {"rope": ("rope of the queries", "rope of the keys"), "add_rms_norm": ("stream", "norm")}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Steps:
    """The part of a run that determines its numbers."""

    path: Path
    dtype: str
    kernels: str
    threads: int
    num_blocks: int
    block_size: int
    plans: Sequence[StepPlan]


@dataclass(frozen=True)
class Call:
    """The result of one call of an operation: the compared rows, by position."""

    number: int  # index in its forward pass
    label: str
    rows: Mapping[int, torch.Tensor]


class RecordingOps:
    """Ops that report every result to a listener. Functions that compute nothing are passed through."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.place = ""  # the running layer, if any
        self.names: dict[int, str] = {}  # of weights, by storage
        self.report: Callable[[str, torch.Tensor], None] = lambda label, outcome: None

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._ops, name)
        return partial(self._recorded, name, function) if name in RECORDED else function

    def _recorded(
        self, name: str, function: Callable[..., object], *arguments: object, **keywords: object
    ) -> object:
        outcome = function(*arguments, **keywords)
        weights = [self.names[key] for key in map(_storage, arguments) if key in self.names]
        words = " ".join(part for part in (self.place, name, *weights) if part)
        for number, part in enumerate(outcome if isinstance(outcome, tuple) else (outcome,)):
            self.report(f"{words}, {PARTS[name][number]}" if name in PARTS else words, part)
        return outcome


def _storage(parameter: object) -> int:
    """Return the same number for a parameter and for the target of its weights."""
    first, *_ = getattr(parameter, "weights", (getattr(parameter, "weight", parameter),))
    whole = getattr(first, "whole", first)
    return id(getattr(whole, "tensor", whole))


@dataclass(frozen=True)
class AnnouncedLayer:
    layer: Any
    index: int
    ops: RecordingOps

    def forward(self, *arguments: Any) -> torch.Tensor:
        self.ops.place = f"layer {self.index}"
        try:
            hidden: torch.Tensor = self.layer.forward(*arguments)
            return hidden
        finally:
            self.ops.place = ""


class Replay:
    """A model with its own weights and blocks that executes plans again."""

    def __init__(self, steps: Steps) -> None:
        checkpoint = open_checkpoint(str(steps.path))
        config = ModelConfig.from_huggingface(checkpoint.config)
        self.ops = RecordingOps(
            select_ops("cpu", DTYPES[steps.dtype], kernels=steps.kernels, threads=steps.threads)
        )
        self.model: Any
        self.model, targets = build_model(config, self.ops, checkpoint.formats)
        load_weights(checkpoint, targets, progress=False)
        self.ops.names = {
            _storage(target): name.removesuffix(".weight").split(".", 3)[-1]
            for name, target in reversed(targets.items())
        }
        layers = self.model.layers
        self.model.layers = [AnnouncedLayer(layer, index, self.ops) for index, layer in enumerate(layers)]
        self.kv = [
            self.ops.new_kv(steps.num_blocks, steps.block_size, config.num_kv_heads, config.head_dim)
            for _ in layers
        ]
        self.steps = steps

    @torch.inference_mode()
    def run(self, token_ids: Sequence[int], listen: Callable[[Call], None]) -> None:
        """Pass to `listen` every call that computes rows whose tokens are a prefix of `token_ids`."""
        slots = Slots(64)
        tokens: dict[int, list[int]] = {}
        for plan in self.steps.plans:
            slots.update(plan)
            tokens |= {opening.slot: list(opening.token_ids) for opening in plan.opened}
            followed: dict[int, int] = {}  # row of the batch -> position
            drawing: list[int] = []
            first_row = 0
            for piece in plan.slices:
                end = piece.start + len(piece.token_ids)
                tokens[piece.slot][piece.start : end] = piece.token_ids
                alike = _common(tokens[piece.slot][:end], token_ids)
                followed |= {first_row + p - piece.start: p for p in range(piece.start, alike)}
                first_row += len(piece.token_ids)
                drawing += range(first_row - piece.num_sampled, first_row)
            if followed:
                self._step(
                    build_batch(plan.slices, slots, self.steps.block_size, self.ops.device),
                    followed,
                    drawing,
                    listen,
                )
            elif plan.slices:
                self.ops.report = lambda label, outcome: None
                self.model.forward(
                    build_batch(plan.slices, slots, self.steps.block_size, self.ops.device), self.kv
                )

    def _step(
        self, batch: Batch, followed: Mapping[int, int], drawing: list[int], listen: Callable[[Call], None]
    ) -> None:
        number = 0
        rows = followed

        def report(label: str, outcome: torch.Tensor) -> None:
            nonlocal number
            listen(Call(number, label, {p: outcome[row].clone().flatten() for row, p in rows.items()}))
            number += 1

        self.ops.report = report
        hidden = self.model.forward(batch, self.kv)
        rows = {place: followed[row] for place, row in enumerate(drawing) if row in followed}
        if rows:
            self.model.logits(hidden[torch.tensor(drawing)])


def first_difference(plain: Steps, disturbed: Steps, token_ids: Sequence[int]) -> str:
    """Return a sentence that locates the first difference."""
    expected: dict[tuple[int, int], torch.Tensor] = {}
    differences: dict[tuple[int, int], str] = {}

    def keep(call: Call) -> None:
        expected.update({(call.number, position): row for position, row in call.rows.items()})

    def compare(call: Call) -> None:
        for position, row in call.rows.items():
            other = expected.get((call.number, position))
            if other is not None and not _same_bits(row, other):
                furthest = (row.double() - other.double()).abs().max().item()
                differences.setdefault(
                    (call.number, position),
                    f"{call.label}, position {position} (max |difference| {furthest:.3g})",
                )

    Replay(plain).run(token_ids, keep)
    Replay(disturbed).run(token_ids, compare)
    if differences:
        return f"first difference: {differences[min(differences)]}"
    return "replayed kernel by kernel, the runs agree: look at the tape, the block tables and the sampler"


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
