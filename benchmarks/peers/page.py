"""From results to Markdown. Every figure and every sentence that depends on one comes from the results."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.models import FORMATS, LLAMA_1B, QWEN, SMOLLM2, SMOLLM2_Q4, SMOLLM2_Q8
from benchmarks.peers.plan import HOPELESS, Case, cases
from benchmarks.peers.plots import plot_figures
from benchmarks.peers.results import EngineFacts, Results

from octavo.bench.serve import Distribution, Summary

DATA = "benchmarks-peers.json"
INCOMPARABLE = {
    "transformers serve": "its completions take text only and know no `ignore_eos`, so the same requests"
    " cannot be asked of it",
}
AIM = 2.0  # times the best peer
FEW_ROUNDS = 5
MODEL_TITLES = {
    SMOLLM2: "SmolLM2-135M-Instruct, real weights in bfloat16",
    LLAMA_1B: "Llama-3.2-1B in shape, random weights in bfloat16",
    QWEN: "Qwen2.5-Coder-1.5B-Instruct, quantised",
    SMOLLM2_Q4: "SmolLM2-135M-Instruct, quantised to Q4_1",
    SMOLLM2_Q8: "SmolLM2-135M-Instruct, quantised to Q8_0",
}
INTRODUCTION = """\
<!-- Made by python -m benchmarks.peers page, from assets/{data}. -->
# Beside other engines

Octavo and other engines on one machine, with the same weights, the same prompts token for token and the same
lengths of answers. On your own machine: `benchmarks/peers/install.sh DEST` installs the peers, each in an
environment of its own, and then

```console
$ python -m benchmarks.peers models DEST --smollm2 smollm2-135m-instruct-q4_1.gguf --tokenizer llama-3.2/ \\
      --qwen qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
$ python -m benchmarks.peers run DEST --rounds 3          # measures, and writes this page
$ python -m benchmarks.peers run DEST --cases qwen q4_1 q8_0                # only what is quantised
```

All figures are in one file, [{data}](assets/{data}), and the page is made from it.

## How it is measured

- Greedy, streamed, `ignore_eos`, {threads} threads, bfloat16, prefix caching on; prompts as token ids, new
  ones in every run, so that no cache knows them.
- Over loopback HTTP, with `octavo bench serve`'s client on the same cores as the server.
- Engines take turns within each workload, and each round begins with another engine. All are loaded; while
  one is measured the others are stopped (SIGSTOP) and use no processor time.
- A figure is the median of its rounds; "x best peer" is the median of the ratios within rounds, with the
  least and the greatest of them. An engine with less than {hopeless} of the best figure in the first round
  is not measured again in that workload.
"""
QUANTISED = """\
- Quantised models: the first row of their tables says which format each engine ran. Octavo and llama.cpp read
  the same GGUF file; for the others its weights were widened to bfloat16 and quantised again.
  Octavo computes with activations in bfloat16; llama.cpp rounds them to 8 bits, and so does vLLM
  beside int4 weights, its default on processors with AMX. What formats cost in quality:
  [choosing a format](formats.md).
"""


def write_page(results: Results, page: Path) -> None:
    """The page; and in `assets` beside it the results and a picture for each model."""
    assets = page.parent / "assets"
    results.write(assets / DATA)
    for model, mine in _by_model(results).items():
        plot_figures(results, mine, MODEL_TITLES[model], assets / _picture(model))
    page.write_text(page_text(results))


def _by_model(results: Results) -> dict[str, list[Case]]:
    """The cases that were run."""
    found = [case for case in cases() if any(run.case == case.key for run in results.runs)]
    return {case.model: [other for other in found if other.model == case.model] for case in found}


def _picture(model: str) -> str:
    return f"benchmarks-peers-{model}.svg"


def page_text(results: Results) -> str:
    hopeless = f"1/{round(1 / HOPELESS)}"
    parts = [INTRODUCTION.format(data=DATA, threads=results.threads, hopeless=hopeless)]
    by_model = _by_model(results)
    if FORMATS.keys() & by_model.keys():
        parts[-1] += QUANTISED
    parts[-1] += "\n".join(f"- {note}." for engine in results.engines for note in engine.notes)
    parts += ["", *_machine(results), ""]
    for model, mine in by_model.items():
        parts += [
            f"## {MODEL_TITLES[model]}",
            "",
            f"![The figures below as bars](assets/{_picture(model)})",
            "",
        ]
        parts += [*_figures(results, mine), "", *_latencies(results, mine), ""]
    parts += [
        "## What was run",
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
        yield "With so few rounds a ratio is rough: machines like this drift by a factor of two in minutes."


def _figures(results: Results, chosen: Sequence[Case]) -> Iterator[str]:
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
    aim = f"The aim is {AIM:g} times the best peer."
    yield f"{aim} Short of it: {', '.join(short)}." if short else f"{aim} It is reached in every row."
    capped = [f"{case.title} to {case.most:,.0f} tok/s" for case in chosen if case.most is not None]
    if capped:
        yield f"Whoever serves, the arrivals limit {' and '.join(capped)}: there, look at the latencies."


def _latencies(results: Results, chosen: Sequence[Case]) -> Iterator[str]:
    names = [engine.name for engine in results.engines_of(chosen)]
    yield from table_head(["TTFT p50, ITL p50 / p99 in ms", *names])
    for case in chosen:
        yield row([case.title, *(_latency(results, name, case) for name in names)])


def _latency(results: Results, name: str, case: Case) -> str:
    def middle(part: str, percentile: str) -> str:
        def value(summary: Summary) -> float | None:
            measured: Distribution | None = getattr(summary, part)
            return None if measured is None else 1e3 * float(getattr(measured, percentile))

        return number_text(results.median(name, case, value))

    if not results.of(name, case):
        return "-"
    return f"{middle('ttft', 'p50')}, {middle('itl', 'p50')} / {middle('itl', 'p99')}"


def _workloads(chosen: Sequence[Case]) -> Iterator[str]:
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


def _engines(engines: Sequence[EngineFacts]) -> Iterator[str]:
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
    """Three digits: more would claim more than the machine gives."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(results: Results, case: Case) -> str:
    ratio, found = results.advantage(case), results.advantages(case)
    if ratio is None:
        return "-"
    text = f"**{ratio:.2f}**" if ratio >= AIM else f"{ratio:.2f}"
    return f"{text} ({min(found):.2f}-{max(found):.2f})" if len(found) > 1 else text
