"""Run the cases: engines take turns, and only one is awake at a time."""

import contextlib
import fcntl
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from benchmarks.peers.engines import MODEL_NAME, PeerEngine, Start
from benchmarks.peers.models import ModelFiles
from benchmarks.peers.openvino_load import run_through_pipe
from benchmarks.peers.plan import GIVE_UP_RATIO, CaseRound, PeerCase, case_rounds, kv_gigabytes_of, slots_of
from benchmarks.peers.results import PeerFacts, Results, RunFacts
from benchmarks.peers.serving import EngineFailed, Running, free_port

from octavo.bench.serve import LoadReport, find_target, run_load
from octavo.errors import OctavoError

REQUEST_SECONDS = 300.0
MEMORY_OF_ENGINE = 2.0  # multiple of the weights: packed copies and all else that an engine needs besides KV


@dataclass(frozen=True)
class RunSettings:
    models: Path
    logs: Path
    results: Path
    threads: int
    rounds: int
    give_up_ratio: float = GIVE_UP_RATIO
    memory: int | None = None  # bytes for engines that are not loaded yet; None: free memory
    lock: Path | None = None  # held during a case round, to coordinate with other users of the machine


class Comparison:
    """Owns the results and the loaded engines, all of one model. A context manager that ends the engines."""

    def __init__(self, settings: RunSettings, engines: Sequence[PeerEngine], results: Results) -> None:
        self._settings = settings
        self._engines = {engine.name: engine for engine in engines}
        self.results = results
        self._loaded: dict[str, Running] = {}
        self._model: str | None = None

    def __enter__(self) -> "Comparison":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the loaded engines."""
        return [running.process.pid for running in self._loaded.values()]

    def run(self, chosen: Sequence[PeerCase]) -> None:
        todo = list(case_rounds(chosen, list(self._engines), self._settings.rounds))
        for number, heat in enumerate(todo, start=1):
            say(f"[{number}/{len(todo)}] {heat.case.key}, round {heat.round + 1} of {self._settings.rounds}")
            self._make_room_for(heat.case.model)
            wanted = [name for name in heat.engines if self._is_wanted(name, heat)]
            if self._fit_together(wanted, heat.case):
                self._run_loaded(wanted, heat)
                continue
            for name in wanted:
                self._end_all()
                self._run_loaded([name], heat)

    def _run_loaded(self, names: Sequence[str], heat: CaseRound) -> None:
        ready = self._load(names, heat.case)
        with held(self._settings.lock if ready else None):
            for name in ready:
                self._take_turn(name, heat)

    def _fit_together(self, names: Sequence[str], case: PeerCase) -> bool:
        """Return whether the engines that are not loaded yet fit into memory with the loaded ones."""
        missing = sum(name not in self._loaded for name in names)
        if not missing:
            return True
        weights = weight_bytes(ModelFiles(self._settings.models, case.model).ours)
        memory = self._settings.memory
        free = psutil.virtual_memory().available if memory is None else memory
        kv = kv_gigabytes_of(case.model) * 2**30
        return missing * (MEMORY_OF_ENGINE * weights + kv) <= free

    def _make_room_for(self, model: str) -> None:
        """End the engines of another model: not every machine has memory for two models."""
        if self._model != model:
            self._end_all()
            self._model = model

    def _is_wanted(self, name: str, heat: CaseRound) -> bool:
        if why := self._why_not(name, heat):
            say(f"    {name:<18} skipped: {why}")
        return why is None

    def _why_not(self, name: str, heat: CaseRound) -> str | None:
        case = heat.case
        if self.results.has(name, case, heat.round):
            return "already in the results"
        if failure := self.results.left_out.get(f"{name}, {case.key}"):
            return f"failed before: {failure}"
        if why := self._engines[name].why_not(ModelFiles(self._settings.models, case.model)):
            self._keep(self.results.with_left_out(f"{name}, {case.model}", why))
            return why
        figures = {each: self.results.median(each, case, case.figure) for each in self._engines}
        best = max(figure or 0.0 for figure in figures.values())
        if heat.round and (mine := figures[name]) is not None and mine < self._settings.give_up_ratio * best:
            return "too slow in an earlier round"
        return None

    def _load(self, names: Sequence[str], case: PeerCase) -> list[str]:
        """Load engines in parallel, as loading mostly uses one thread. Return those that loaded, frozen."""
        started = time.monotonic()
        files = ModelFiles(self._settings.models, case.model)
        self._settings.logs.mkdir(parents=True, exist_ok=True)
        new = [name for name in names if name not in self._loaded]
        for name in new:
            log = self._settings.logs / f"{name.replace(' ', '-').lower()}-{files.name}.log"
            sizes = slots_of(case.model), kv_gigabytes_of(case.model)
            start = Start(files, free_port(), self._settings.threads, *sizes)
            self._loaded[name] = Running(self._engines[name], start, log)
        for name in new:
            running, engine = self._loaded[name], self._engines[name]
            try:
                running.wait_until_ready()
            except EngineFailed as problem:
                self._note_failure(name, case, problem)
                continue
            running.freeze()
            commands = {files.name: shown_command(running.command)}
            facts = PeerFacts(name, engine.version(), engine.is_ours, commands, tuple(engine.notes))
            self._keep(self.results.with_engine(facts))
            say(f"    {name:<18} loaded after {time.monotonic() - started:.0f} s")
        return [name for name in names if name in self._loaded]

    def _take_turn(self, name: str, heat: CaseRound) -> None:
        started = time.monotonic()
        running, seed = self._loaded[name], secrets.randbits(32)
        running.thaw()
        try:
            report = measure(running, ModelFiles(self._settings.models, heat.case.model), heat.case, seed)
        except (EngineFailed, OctavoError) as problem:
            self._note_failure(name, heat.case, problem)
            return
        running.freeze()
        self._keep(
            self.results.with_run(
                RunFacts(name, heat.case.key, heat.round, seed, report.began, report.summary, report.warnings)
            )
        )
        value = heat.case.figure(report.summary)
        figure = f"{value:8,.1f} {heat.case.figure_name}" if value is not None else "no figure"
        say(f"    {name:<18} {figure}   ({time.monotonic() - started:.0f} s)")

    def _note_failure(self, name: str, case: PeerCase, problem: Exception) -> None:
        say(f"    {name:<18} failed: {problem}")
        self._keep(self.results.with_left_out(f"{name}, {case.key}", str(problem)))
        self._end(name)

    def _keep(self, results: Results) -> None:
        self.results = results
        results.write(self._settings.results)

    def _end(self, name: str) -> None:
        if running := self._loaded.pop(name, None):
            running.end()

    def _end_all(self) -> None:
        for name in list(self._loaded):
            self._end(name)


def measure(running: Running, files: ModelFiles, case: PeerCase, seed: int) -> LoadReport:
    if not running.engine.has_http:
        return run_through_pipe(running, files, case.workload, seed)
    target = find_target(running.url, model=MODEL_NAME, tokenizer=str(files.ours))
    return run_load(target, case.workload, seed, timeout=REQUEST_SECONDS)


def weight_bytes(checkpoint: Path) -> int:
    """Return the size of a file, or of the files in a folder."""
    files = [checkpoint] if checkpoint.is_file() else checkpoint.iterdir()
    return sum(file.stat().st_size for file in files)


def shown_command(command: Sequence[str]) -> str:
    """Return the command as a user would type it: file names instead of paths, and no port."""
    words = []
    rest = iter(command)
    for word in rest:
        if word == "--port":
            next(rest)
        else:
            words.append(Path(word).name if Path(word).is_absolute() else word)
    return shlex.join(words)


@contextlib.contextmanager
def held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(text, flush=True)
