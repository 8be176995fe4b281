"""Generate docs/benchmarks-peers.md. Figures, and sentences that depend on them, come from the results."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.models import FORMATS, LLAMA_1B, QWEN, SMOLLM2, SMOLLM2_Q4, SMOLLM2_Q8
from benchmarks.peers.plan import GIVE_UP_RATIO, PeerCase, cases
from benchmarks.peers.plots import plot_figures
from benchmarks.peers.results import PeerFacts, Results

from octavo.bench.serve import Distribution, Summary

DATA = "benchmarks-peers.json"
INCOMPARABLE = {
    "transformers serve": "its completions endpoint accepts only text and does not support `ignore_eos`,"
    " so it cannot run the same requests",
}
AIM = 2.0  # times the best peer
FEW_ROUNDS = 5
MODEL_TITLES = {
    SMOLLM2: "SmolLM2-135M-Instruct, real weights in bfloat16",
    LLAMA_1B: "Llama-3.2-1B shape, random weights in bfloat16",
    QWEN: "Qwen2.5-Coder-1.5B-Instruct, quantised",
    SMOLLM2_Q4: "SmolLM2-135M-Instruct, quantised to Q4_1",
    SMOLLM2_Q8: "SmolLM2-135M-Instruct, quantised to Q8_0",
}
INTRODUCTION = """\
<!-- Made by python -m benchmarks.peers page, from assets/{data}. -->
# Comparison with other engines

This page compares Octavo with other engines on one machine, with the same weights, the same prompts token for
token, and the same answer lengths. To run the comparison on your own machine, install the other engines with
`benchmarks/peers/install.sh DEST`, each in its own environment, and then run:

```console
$ python -m benchmarks.peers models DEST --smollm2 smollm2-135m-instruct-q4_1.gguf --tokenizer llama-3.2/ \\
      --qwen qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
$ python -m benchmarks.peers run DEST --rounds 3          # measure and write this page
$ python -m benchmarks.peers run DEST --cases qwen q4_1 q8_0                # only the quantised models
```

This page is generated from [{data}](assets/{data}), which contains all figures.

## How it is measured

- Engines run with {threads} threads, bfloat16 and prefix caching. Requests are greedy and streamed, with
  `ignore_eos`. Prompts are token ids, new in every run, so that no cache contains them.
- Requests are sent over loopback HTTP by the client of `octavo bench serve`, on the same cores as the server.
- Engines take turns within each workload, and each round begins with a different engine. All engines are
  loaded; while one is measured, the others are stopped (SIGSTOP) and use no CPU time.
- A figure is the median of its rounds. "x best peer" is the median of the ratios within rounds, followed by
  the smallest and the largest ratio. An engine with less than {give_up_ratio} of the best figure in the first
  round is not measured again in that workload.
"""
QUANTISED = """\
- Quantised models: the first row of a table shows the format that each engine ran. Octavo and llama.cpp read
  the same GGUF file; for the other engines, its weights were widened to bfloat16 and quantised again.
  Octavo computes with bfloat16 activations. llama.cpp rounds activations to 8 bits, and so does vLLM with
  int4 weights, which is its default on processors with AMX. [Choosing a format](formats.md) shows what
  formats cost in quality.
"""


def write_page(results: Results, page: Path) -> None:
    """Write the page, and to `assets` beside it the results and a chart for each model."""
    assets = page.parent / "assets"
    results.write(assets / DATA)
    for model, mine in _by_model(results).items():
        plot_figures(results, mine, MODEL_TITLES[model], assets / _picture(model))
    page.write_text(page_text(results))


def _by_model(results: Results) -> dict[str, list[PeerCase]]:
    """Return the cases that were run, by model."""
    found = [case for case in cases() if any(run.case == case.key for run in results.runs)]
    return {case.model: [other for other in found if other.model == case.model] for case in found}


def _picture(model: str) -> str:
    return f"benchmarks-peers-{model}.svg"


def page_text(results: Results) -> str:
    give_up_ratio = f"1/{round(1 / GIVE_UP_RATIO)}"
    parts = [INTRODUCTION.format(data=DATA, threads=results.threads, give_up_ratio=give_up_ratio)]
    by_model = _by_model(results)
    if FORMATS.keys() & by_model.keys():
        parts[-1] += QUANTISED
    parts[-1] += "\n".join(f"- {note}." for engine in results.engines for note in engine.notes)
    parts += ["", *_machine(results), ""]
    for model, mine in by_model.items():
        parts += [
            f"## {MODEL_TITLES[model]}",
            "",
            f"![Bar chart of the figures below](assets/{_picture(model)})",
            "",
        ]
        parts += [*_figures(results, mine), "", *_latencies(results, mine), ""]
    parts += [
        "## Workloads and commands",
        "",
        *_workloads([case for mine in by_model.values() for case in mine]),
        "",
        *_engines(results.engines),
        *_left_out(results),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _machine(results: Results) -> Iterator[str]:
    machine, (first, last) = results.machine, results.dates
    yield "## Machine and date"
    yield ""
    yield (
        f"{machine.processor}, {machine.cores} logical cores, {machine.memory_gigabytes:g} GiB,"
        f" {machine.system}; from {first} to {last} UTC, {results.num_rounds} rounds."
    )
    if results.num_rounds < FEW_ROUNDS:
        yield (
            f"With only {results.num_rounds} rounds, ratios are rough: the speed of a machine like this one"
            " drifts by a factor of two within minutes."
        )


def _figures(results: Results, chosen: Sequence[PeerCase]) -> Iterator[str]:
    names = [engine.name for engine in results.engines_of(chosen)]
    yield from table_head(["tokens per second", *names, "x best peer"])
    if formats := FORMATS.get(chosen[0].model):
        yield row(["weights", *(formats.get(name, "-") for name in names), ""])
    for case in chosen:
        cells = [number_text(results.median(name, case, case.figure)) for name in names]
        yield row([f"{case.title}: {case.figure_name}", *cells, _times(results, case)])
    short = [
        case.title
        for case in chosen
        if (advantage := results.advantage(case)) is not None and advantage < AIM
    ]
    yield ""
    aim = f"The target is {AIM:g} times the best peer."
    yield f"{aim} Not reached in: {', '.join(short)}." if short else f"{aim} It is reached in every row."
    capped = [f"{case.limit:,.0f} tok/s in {case.title}" for case in chosen if case.limit is not None]
    if capped:
        yield f"The arrival rate limits any engine to {' and '.join(capped)}: compare the latencies there."


def _latencies(results: Results, chosen: Sequence[PeerCase]) -> Iterator[str]:
    names = [engine.name for engine in results.engines_of(chosen)]
    yield from table_head(["TTFT p50, ITL p50 / p99 in ms", *names])
    for case in chosen:
        yield row([case.title, *(_latency(results, name, case) for name in names)])


def _latency(results: Results, name: str, case: PeerCase) -> str:
    def middle(part: str, percentile: str) -> str:
        def value(summary: Summary) -> float | None:
            measured: Distribution | None = getattr(summary, part)
            return None if measured is None else 1e3 * float(getattr(measured, percentile))

        return number_text(results.median(name, case, value))

    if not results.of(name, case):
        return "-"
    return f"{middle('ttft', 'p50')}, {middle('itl', 'p50')} / {middle('itl', 'p99')}"


def _workloads(chosen: Sequence[PeerCase]) -> Iterator[str]:
    yield from table_head(["workload", "requests", "arrivals", "prompt", "answer"])
    for case in chosen:
        load = case.workload
        prompt = f"{load.shared} shared + {load.prompt}" if load.shared else str(load.prompt)
        yield row(
            [
                f"{case.model}, {case.title}",
                str(load.num_requests),
                str(load.arrivals),
                prompt,
                str(load.output),
            ]
        )


def _engines(engines: Sequence[PeerFacts]) -> Iterator[str]:
    for engine in engines:
        yield f"**{engine.name}** {engine.version}:"
        yield ""
        yield "```text"
        yield from dict.fromkeys(engine.commands.values())
        yield "```"
        yield ""


def _left_out(results: Results) -> Iterator[str]:
    yield "Not measured:"
    yield ""
    for what, why in {**results.left_out, **INCOMPARABLE}.items():
        yield f"- {what}: {why}."


def table_head(cells: Sequence[str]) -> Iterator[str]:
    yield row(cells)
    yield row(["---"] * len(cells))


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number_text(value: float | None) -> str:
    """Return the value with three digits: the machine is not steady enough for more."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(results: Results, case: PeerCase) -> str:
    ratio, found = results.advantage(case), results.advantages(case)
    if ratio is None:
        return "-"
    text = f"**{ratio:.2f}**" if ratio >= AIM else f"{ratio:.2f}"
    return f"{text} ({min(found):.2f}-{max(found):.2f})" if len(found) > 1 else text
