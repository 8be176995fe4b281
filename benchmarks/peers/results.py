"""The results, kept in one JSON file. It is written after every run; runs in the file are not repeated."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil
from benchmarks.peers.plan import Figure, PeerCase

from octavo.bench.serve import Summary


@dataclass(frozen=True)
class MachineFacts:
    processor: str
    cores: int
    memory_gigabytes: float
    system: str


@dataclass(frozen=True)
class PeerFacts:
    name: str
    version: str
    is_ours: bool
    commands: Mapping[str, str]  # by model
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class RunFacts:
    engine: str
    case: str
    round: int
    seed: int
    began: float  # Unix time
    summary: Summary
    warnings: Sequence[str]


@dataclass(frozen=True)
class Results:
    machine: MachineFacts
    threads: int
    engines: Sequence[PeerFacts] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # engine, or engine and case, to the reason
    runs: Sequence[RunFacts] = ()

    def has(self, engine: str, case: PeerCase, number: int) -> bool:
        return any((run.engine, run.case, run.round) == (engine, case.key, number) for run in self.runs)

    def with_run(self, run: RunFacts) -> "Results":
        """Add a run. Its engine is no longer left out, as it may have been before it was chosen or installed.
        A failed case remains left out and is not tried again."""
        model, _, _ = run.case.partition("/")
        stale = (run.engine, f"{run.engine}, {model}")
        left_out = {what: why for what, why in self.left_out.items() if what not in stale}
        return replace(self, left_out=left_out, runs=(*self.runs, run))

    def with_engine(self, facts: PeerFacts) -> "Results":
        known = {engine.name: engine for engine in self.engines}
        if facts.name in known:
            commands = {**known[facts.name].commands, **facts.commands}
            facts = replace(facts, commands=commands)
        return replace(self, engines=tuple({**known, facts.name: facts}.values()))

    def with_left_out(self, what: str, why: str) -> "Results":
        return replace(self, left_out={**self.left_out, what: why})

    def of(self, engine: str, case: PeerCase) -> list[RunFacts]:
        return [run for run in self.runs if (run.engine, run.case) == (engine, case.key)]

    def engines_of(self, chosen: Sequence[PeerCase]) -> list[PeerFacts]:
        """Return the engines that have run at least one of the cases."""
        return [engine for engine in self.engines if any(self.of(engine.name, case) for case in chosen)]

    def median(self, engine: str, case: PeerCase, figure: Figure) -> float | None:
        values = [value for run in self.of(engine, case) if (value := figure(run.summary)) is not None]
        return statistics.median(values) if values else None

    def best_peer(self, case: PeerCase) -> tuple[str, float] | None:
        peers = [
            (engine.name, value)
            for engine in self.engines
            if not engine.is_ours and (value := self.median(engine.name, case, case.figure)) is not None
        ]
        return max(peers, key=lambda peer: peer[1]) if peers else None

    def ratios(
        self, name: str, beside: str, case: PeerCase, ratio: Callable[[float, float], float]
    ) -> list[float]:
        """Return `ratio(figure of beside, figure of name)` for each round that has both."""
        others = {run.round: case.figure(run.summary) for run in self.of(beside, case)}
        return [
            ratio(other, value)
            for run in self.of(name, case)
            if (value := case.figure(run.summary)) and (other := others.get(run.round))
        ]

    def paired(
        self, name: str, beside: str, case: PeerCase, ratio: Callable[[float, float], float]
    ) -> float | None:
        """Return the median of the ratios, or None if there is none."""
        found = self.ratios(name, beside, case, ratio)
        return statistics.median(found) if found else None

    def advantages(self, case: PeerCase) -> list[float]:
        """Return Octavo's figure divided by the best peer's, for each round."""
        best = self.best_peer(case)
        ours = next((engine.name for engine in self.engines if engine.is_ours), None)
        if best is None or ours is None:
            return []
        return self.ratios(ours, best[0], case, lambda theirs, mine: mine / theirs)

    def advantage(self, case: PeerCase) -> float | None:
        found = self.advantages(case)
        return statistics.median(found) if found else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Results":
        return msgspec.json.decode(path.read_bytes(), type=cls)

    @property
    def num_rounds(self) -> int:
        return max((run.round + 1 for run in self.runs), default=0)

    @property
    def dates(self) -> tuple[str, str]:
        """Return the start times of the first and the last run."""
        times = [run.began for run in self.runs] or [time.time()]
        first, last = (
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(each)) for each in (min(times), max(times))
        )
        return first, last


def this_machine() -> MachineFacts:
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
        extras = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]
        processor = f"{names[0] if names else processor} ({', '.join(extras)})"
    release, _, _ = platform.release().partition("-")
    return MachineFacts(
        processor,
        psutil.cpu_count(logical=True) or 0,
        round(psutil.virtual_memory().total / 2**30, 1),
        f"{platform.system()} {release}",
    )
