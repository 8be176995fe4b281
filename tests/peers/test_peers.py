"""benchmarks/peers, with engines that compute nothing in place of the peers."""

import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from benchmarks.peers.engines import Start, engines, environment_of
from benchmarks.peers.models import FORMATS, QWEN, SMOLLM2, SMOLLM2_Q4, ModelFiles, Sources, make_models
from benchmarks.peers.openvino_load import record_of
from benchmarks.peers.page import write_page
from benchmarks.peers.plan import FAST, PeerCase, case_rounds, cases, output_rate
from benchmarks.peers.results import MachineFacts, PeerFacts, Results, RunFacts
from benchmarks.peers.run import Comparison, RunSettings, shown_command

from octavo.bench.serve import AtOnce, Fixed, Slo, Summary, Workload
from octavo.bench.serve.prompts import PlannedRequest
from octavo.bench.serve.summary import summarise
from peers.fakes import fake_engine

MACHINE = MachineFacts("a processor", 2, 8.0, "a system")
OURS, THEIRS = "ours", "theirs"


def summary_at(rate: float) -> Summary:
    """Return the summary of one request with 10 tokens at this rate in tokens per second."""
    planned = PlannedRequest(0, None, (0,) * 8, 10)
    times = [(count + 1) / rate for count in range(10)]
    record = record_of(planned, {"sent_at": 0.0, "chunk_times": times, "chunk_tokens": [1] * 10})
    return summarise([record], Slo())


def results_of(case: PeerCase, rates: dict[str, list[float]]) -> Results:
    facts = [PeerFacts(name, "1", name == OURS, {case.model: f"{name} --serve"}) for name in rates]
    runs = [
        RunFacts(name, case.key, number, 0, 0.0, summary_at(rate), ())
        for name, of_rounds in rates.items()
        for number, rate in enumerate(of_rounds)
    ]
    return Results(MACHINE, 2, facts, {}, runs)


def test_every_engine_runs_every_case_once_per_round_in_rotating_order() -> None:
    names, rounds = ["a", "b", "c"], 3
    everyones = [case for case in cases() if case.engines is None]
    found = list(case_rounds(everyones, names, rounds))
    for case in everyones:
        mine = [heat for heat in found if heat.case == case]
        assert [heat.round for heat in mine] == list(range(rounds))
        assert all(sorted(heat.engines) == names for heat in mine)
        assert [heat.engines[0] for heat in mine] == names
    only = replace(cases()[0], engines=("b",))
    assert [heat.engines for heat in case_rounds([only], names, 2)] == [("b",), ("b",)]


def test_figures_are_medians_and_ratios_are_computed_within_rounds() -> None:
    case = cases()[1]
    # In round 2 the machine was slow: both rates are halved. The ratio of medians would be 200/150.
    results = results_of(case, {OURS: [200.0, 100.0, 220.0], THEIRS: [100.0, 50.0, 150.0], "slow": [1.0]})
    assert results.median(OURS, case, case.figure) == pytest.approx(200.0)
    best = results.best_peer(case)
    assert best is not None
    assert best[0] == THEIRS
    assert best[1] == pytest.approx(100.0)
    assert results.advantage(case) == pytest.approx(2.0)


def test_results_round_trip_through_a_file(tmp_path: Path) -> None:
    results = results_of(cases()[0], {OURS: [2.0], THEIRS: [1.0]}).with_left_out("vLLM", "not installed")
    results.write(tmp_path / "results.json")
    again = Results.read(tmp_path / "results.json")
    assert again == replace(results, runs=again.runs, engines=again.engines)
    assert list(again.runs) == [replace(run, warnings=list(run.warnings)) for run in results.runs]


def test_the_page_has_every_figure_and_lists_missing_ones(tmp_path: Path) -> None:
    single, burst = cases()[:2]
    results = results_of(single, {OURS: [300.0], THEIRS: [100.0]})
    more = results_of(burst, {OURS: [550.0], THEIRS: [500.0]})
    results = replace(results, runs=(*results.runs, *more.runs)).with_left_out(
        "llama.cpp", "it is not installed"
    )
    page = tmp_path / "page.md"
    write_page(results, page)
    text = page.read_text()
    assert "| single: decode tok/s | 300 | 100 | **3.00** |" in text
    assert "| burst: output tok/s | 550 | 500 | 1.10 |" in text
    assert "Not reached in: burst." in text
    assert "- llama.cpp: it is not installed." in text
    assert "theirs --serve" in text
    picture = tmp_path / "assets" / f"benchmarks-peers-{SMOLLM2}.svg"
    before = page.read_bytes(), picture.read_bytes()
    write_page(Results.read(tmp_path / "assets/benchmarks-peers.json"), page)
    assert (page.read_bytes(), picture.read_bytes()) == before, "the page is a function of the results"


def test_all_engines_get_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    assert set(FAST) <= {engine.name for engine in engines(tmp_path)}
    models = [ModelFiles(tmp_path, name) for name in ("model", QWEN)]
    for engine, model in itertools.product(engines(tmp_path), models):
        start = Start(model, 1234, threads=3, slots=5, kv_gigabytes=1)
        words = [*engine.command(start), *environment_of(engine, start).values()]
        assert str(engine.needs(model)) in words
        assert {"3", "0-2"} & set(words), f"{engine.name} does not get the number of threads"
        assert "1234" in words or not engine.has_http
        assert engine.is_ours or "PYTHONPATH" not in environment_of(engine, start)
        assert str(tmp_path) not in shown_command(words)
        assert "1234" not in shown_command(engine.command(start))


def test_quantised_models_run_on_engines_that_support_their_format(tmp_path: Path) -> None:
    known = {engine.name: engine for engine in engines(tmp_path)}
    quantised = [case for case in cases() if case.model in FORMATS]
    assert {case.model for case in quantised} == set(FORMATS)
    for case in quantised:
        assert case.engines == tuple(FORMATS[case.model])
        files = ModelFiles(tmp_path, case.model)
        ours, theirs = known["Octavo"], known["llama.cpp server"]
        assert ours.needs(files) == theirs.needs(files) == files.ours, "both must read the same file"
        assert FORMATS[case.model][ours.name] == FORMATS[case.model][theirs.name]
    assert set(FORMATS[QWEN]) == set(known)


def test_the_page_shows_the_format_of_each_engine(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.model == SMOLLM2_Q4)
    assert case.engines is not None
    names = [*case.engines, "another"]
    results = results_of(case, {name: [100.0] for name in names})
    plain = results_of(cases()[0], {name: [100.0] for name in names})
    both = replace(results, runs=(*plain.runs, *results.runs[:-1]))
    write_page(both, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    _, _, section = text.partition("quantised to Q4_1\n")
    head, _, formats = [line for line in section.splitlines() if line.startswith("|")][:3]
    assert head == f"| tokens per second | {' | '.join(case.engines)} | x best peer |", (
        "engines without a run are not listed"
    )
    assert formats == "| weights | Q4_1 | Q4_1 |  |"
    assert text.count("| weights |") == text.count("- Quantised models:") == 1
    write_page(plain, tmp_path / "page.md")
    assert "uantised" not in (tmp_path / "page.md").read_text().partition("## How it is measured")[2]


def test_models_are_created_for_octavo_when_peers_are_missing(tmp_path: Path) -> None:
    source = tmp_path / "smollm2.gguf"
    source.write_bytes(b"GGUF")
    for name in (SMOLLM2, QWEN, f"{QWEN}.widened"):  # exists already, so that nothing is computed
        (tmp_path / "models" / name).mkdir(parents=True)
    for _ in range(2):
        make_models(tmp_path / "peers", tmp_path / "models", Sources(smollm2=source, qwen=source))
    made = {path.name for path in (tmp_path / "models").iterdir() if path.is_file()}
    assert made == {f"{SMOLLM2_Q4}.gguf", f"{QWEN}.gguf"}
    assert ModelFiles(tmp_path / "models", QWEN).ours.read_bytes() == b"GGUF"


def test_engines_that_are_not_installed_are_skipped_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = [engine for engine in engines(tmp_path) if not engine.is_ours]
    results_path = tmp_path / "results.json"
    settings = RunSettings(tmp_path, tmp_path / "logs", results_path, threads=1, rounds=1)
    with Comparison(settings, peers, Results(MACHINE, 1)) as comparison:
        comparison.run(cases()[:1])
    assert not Results.read(results_path).runs
    said = capsys.readouterr().out
    for peer in peers:
        assert f"{peer.name}, {SMOLLM2}" in Results.read(results_path).left_out
        assert peer.name in said
    assert said.count("it is not installed") == len(peers)


def test_engines_take_turns_while_the_others_are_stopped(tiny_checkpoint: Path, tmp_path: Path) -> None:
    load = Workload("small", "", 3, AtOnce(), Fixed(8), Fixed(4))
    case = PeerCase(tiny_checkpoint.name, "small", load, "output tok/s", output_rate)
    settings = RunSettings(
        tiny_checkpoint.parent, tmp_path / "logs", tmp_path / "results.json", 1, 2, give_up_ratio=0.0
    )
    chosen = [fake_engine(OURS, "http", is_ours=True), fake_engine(THEIRS, "pipe")]
    with Comparison(settings, chosen, Results(MACHINE, 1)) as comparison:
        comparison.run([case])
        loaded = [psutil.Process(pid) for pid in comparison.pids]
        assert len(loaded) == 2
        assert {process.status() for process in loaded} == {psutil.STATUS_STOPPED}
    assert not any(process.is_running() for process in loaded)
    results = Results.read(settings.results)
    assert [(run.engine, run.round) for run in results.runs] == [
        (OURS, 0),
        (THEIRS, 0),
        (THEIRS, 1),
        (OURS, 1),
    ]
    assert all(run.summary.completion_tokens == 12 and not run.summary.num_failed for run in results.runs)
    # The fake behind the pipe reports its last token at two seconds.
    assert results.median(THEIRS, case, output_rate) == pytest.approx(6.0)
    with Comparison(settings, chosen, results) as comparison:
        comparison.run([case])
        assert not comparison.pids, "all runs are in the results: no engine is loaded"


def test_engines_are_loaded_one_at_a_time_when_memory_is_short(tiny_checkpoint: Path, tmp_path: Path) -> None:
    load = Workload("small", "", 1, AtOnce(), Fixed(8), Fixed(2))
    case = PeerCase(tiny_checkpoint.name, "small", load, "output tok/s", output_rate)
    results_path = tmp_path / "results.json"
    settings = RunSettings(tiny_checkpoint.parent, tmp_path / "logs", results_path, 1, 2, memory=0)
    chosen = [fake_engine(OURS, "pipe", is_ours=True), fake_engine(THEIRS, "pipe")]
    with Comparison(settings, chosen, Results(MACHINE, 1)) as comparison:
        comparison.run([case])
        assert len(comparison.pids) == 1
    assert [run.engine for run in comparison.results.runs] == [OURS, THEIRS, THEIRS, OURS]


def test_an_engine_that_fails_to_start_does_not_affect_the_others(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    load = Workload("small", "", 1, AtOnce(), Fixed(8), Fixed(2))
    case = PeerCase(tiny_checkpoint.name, "small", load, "output tok/s", output_rate)
    broken = replace(
        fake_engine(OURS, "http", is_ours=True), command=lambda start: [sys.executable, "-c", "1"]
    )
    settings = RunSettings(tiny_checkpoint.parent, tmp_path / "logs", tmp_path / "results.json", 1, 1)
    with Comparison(settings, [broken, fake_engine(THEIRS, "pipe")], Results(MACHINE, 1)) as comparison:
        comparison.run([case])
    assert [run.engine for run in comparison.results.runs] == [THEIRS]
    assert "did not start" in comparison.results.left_out[f"{OURS}, {case.key}"]


class StepByStep:
    """The part of OpenVINO's pipeline that the driver uses. Each step gives every request one token."""

    def __init__(self) -> None:
        self.handles: list[SimpleNamespace] = []
        self.max_at_once = 0

    def add_request(self, number: int, prompt: object, config: SimpleNamespace) -> SimpleNamespace:
        handle = SimpleNamespace(unread=0, left=config.max_new_tokens)
        handle.can_read = lambda: handle.unread > 0
        handle.read = lambda: self._take(handle)
        self.handles.append(handle)
        return handle

    def step(self) -> None:
        running = [handle for handle in self.handles if handle.left]
        self.max_at_once = max(self.max_at_once, len(running))
        for handle in running:
            handle.left -= 1
            handle.unread += 1

    def _take(self, handle: SimpleNamespace) -> dict[int, SimpleNamespace]:
        taken, handle.unread = [0] * handle.unread, 0
        return {0: SimpleNamespace(generated_ids=taken)}


@pytest.mark.parametrize("concurrency", [None, 2])
def test_the_openvino_driver_follows_the_arrival_times(
    monkeypatch: pytest.MonkeyPatch, concurrency: int | None
) -> None:
    genai = SimpleNamespace(GenerationConfig=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=lambda ids: ids))
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    driver = importlib.import_module("benchmarks.peers.openvino_driver")
    at = [0.0, 0.0, 0.05, 0.1] if concurrency is None else [None] * 4
    requests = [{"at": each, "prompt": [1, 2], "output": 3} for each in at]
    pipeline = StepByStep()
    answers = driver.OpenVinoLoad(pipeline, {"concurrency": concurrency, "requests": requests}, 0).run()
    assert [sum(answer["chunk_tokens"]) for answer in answers] == [3] * 4
    assert pipeline.max_at_once == 2
    for answer, due in zip(answers, at, strict=True):
        assert answer["chunk_times"] == sorted(answer["chunk_times"])
        assert answer["chunk_times"][0] >= answer["sent_at"]
        assert due is None or answer["sent_at"] == due


def test_measuring_an_engine_removes_it_from_the_omissions() -> None:
    case = cases()[0]
    measured = results_of(case, {OURS: [2.0], THEIRS: [1.0]})
    results = Results(MACHINE, 2)
    for name in (OURS, THEIRS, "another"):
        results = results.with_left_out(name, "not chosen for this run")
    results = results.with_left_out(f"{THEIRS}, {case.model}", "it is not installed")
    for run in measured.runs:
        results = results.with_run(run)
    assert results.left_out == {"another": "not chosen for this run"}
    failed = results.with_left_out(f"{THEIRS}, {case.key}", "it died")
    assert f"{THEIRS}, {case.key}" in failed.with_run(measured.runs[0]).left_out
