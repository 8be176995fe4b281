"""The stages, from the engine without optimisations to the complete one, and the workload that shows each.

All stages are the same program with different settings: there is no second scheduler, cache or model.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.engines import MODEL_NAME, PeerEngine, Start
from benchmarks.peers.plan import Figure, PeerCase, decode_rate, output_rate

from octavo.bench.serve import AtOnce, Closed, Fixed, LogUniform, Mix, Steady, Summary, Workload

CONTEXT = 1024
PLAIN = "plain torch"
MIX = "mix"  # the workload of all stages

COMMON = ("--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--kv-memory", "256MiB")
# Flags that turn each optimisation off, in the order in which the stages turn them on.
OFF = {
    "continuous batching": ("--admission", "static"),
    "paged KV": ("--block-size", "0"),
    "chunked prefill": ("--max-step-tokens", "0"),
    "prefix caching": ("--no-prefix-caching",),
    "native kernels": ("--kernels", "torch"),
    "tape": ("--no-tape",),
}


@dataclass(frozen=True)
class Stage:
    """One more optimisation than the stage before, and the workload and figure that show its effect."""

    name: str
    workload: Workload
    figure_name: str
    figure: Figure
    less_is_better: bool = False

    def gain(self, before: float, after: float) -> float:
        return before / after if self.less_is_better else after / before


def ttft(summary: Summary) -> float | None:
    return None if summary.ttft is None else 1e3 * summary.ttft.p50


def longest_gaps(summary: Summary) -> float | None:
    return None if summary.itl is None else 1e3 * summary.itl.p99


def stages() -> list[Stage]:
    return [
        Stage(
            "continuous batching",
            Workload(
                "continuous batching",
                "many requests at once with short and long answers: do new ones start when short ones end?",
                *(24, AtOnce(), Fixed(32), Mix(((0.75, 8), (0.25, 96)))),
            ),
            "output tok/s",
            output_rate,
        ),
        Stage(
            "paged KV",
            Workload(
                "paged KV",
                "many requests at once, of mixed lengths, with 256 MiB for KV: how many fit together?",
                *(32, AtOnce(), LogUniform(16, 128), LogUniform(16, 96)),
            ),
            "output tok/s",
            output_rate,
        ),
        Stage(
            "chunked prefill",
            Workload(
                "chunked prefill",
                "long prompts arrive during other answers: how long do those answers wait for a token?",
                *(12, Steady(3.0), Mix(((0.5, 900), (0.5, 32))), Fixed(32)),
            ),
            "ITL p99, ms",
            longest_gaps,
            less_is_better=True,
        ),
        Stage(
            "prefix caching",
            Workload(
                "prefix caching",
                "all prompts begin with the same 512 tokens: are these computed only once?",
                *(16, Steady(2.0), Fixed(32), Fixed(8)),
                shared=512,
            ),
            "TTFT p50, ms",
            ttft,
            less_is_better=True,
        ),
        Stage(
            "native kernels",
            Workload("native kernels", "sixteen requests at once", 16, AtOnce(), Fixed(64), Fixed(64)),
            "output tok/s",
            output_rate,
        ),
        Stage(
            "tape",
            Workload("tape", "one request at a time", 4, Closed(1), Fixed(32), Fixed(96)),
            "decode tok/s",
            decode_rate,
        ),
    ]


def mix() -> Workload:
    """Return a workload that uses every optimisation and is small enough for the slowest stage."""
    return Workload(
        MIX,
        "many requests at once, of mixed lengths, whose prompts begin with the same 128 tokens",
        *(16, AtOnce(), LogUniform(16, 384), LogUniform(8, 64)),
        shared=128,
    )


def cases(model: str) -> list[PeerCase]:
    """Return a case for each stage and the one before it, then one for all stages on the mix."""
    names = [PLAIN, *OFF]
    shown = [
        PeerCase(model, stage.name, stage.workload, stage.figure_name, stage.figure, (before, stage.name))
        for before, stage in zip(names, stages(), strict=False)
    ]
    return [*shown, PeerCase(model, MIX, mix(), "output tok/s", output_rate)]


def miniature(case: PeerCase) -> PeerCase:
    """Return a small version of the case, for tests that only check that it runs."""
    load = case.workload.scaled(num_requests=3, prompt=Fixed(8), output=Fixed(4), shared=0)
    return PeerCase(case.model, case.title, load, case.figure_name, case.figure, case.engines)


def engines(common: Sequence[str] = COMMON) -> list[PeerEngine]:
    """Return an engine for each stage, with the optimisations up to it turned on."""
    return [_engine(name, flags_of(number), common) for number, name in enumerate([PLAIN, *OFF])]


def flags_of(num_on: int) -> tuple[str, ...]:
    return tuple(flag for flags in list(OFF.values())[num_on:] for flag in flags)


def _engine(name: str, flags: Sequence[str], common: Sequence[str]) -> PeerEngine:
    def command(start: Start) -> list[str]:
        return [
            *(sys.executable, "-m", "octavo.cli.main", "serve", str(start.model.folder)),
            *("--served-model-name", MODEL_NAME, "--port", str(start.port), "--log-level", "warning"),
            *("--threads", str(start.threads), *common, *flags),
        ]

    def version() -> str:
        import octavo

        return octavo.__version__

    return PeerEngine(
        name,
        is_ours=True,
        has_http=True,
        program=Path(sys.executable),
        command=command,
        environment=lambda start: {},
        version=version,
        needs=lambda model: model.folder,
    )
