"""Generate docs/progression.md and its chart from the results."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.page import number_text, row, table_head
from benchmarks.peers.plots import save
from benchmarks.peers.results import Results
from benchmarks.progression.stages import COMMON, MIX, OFF, PLAIN, Stage, cases, stages

INTRODUCTION = """\
<!-- Made by python -m benchmarks.progression, from assets/progression.json. -->
# What each optimisation gains

This page compares one engine on one model, {model}, while its optimisations are turned on one after another.
Each stage is compared with the stage before it, on the workload that shows its effect. One command measures
all stages and writes this page:

```console
$ python -m benchmarks.progression MODEL --rounds {rounds}
```

![Tokens per second of each stage on one mixed workload](assets/progression.svg)
"""
EXPLANATION = """\
- "mix tok/s" is one workload for all stages: {mix}.
  A stage includes all stages above it, and its effect need not show in this column: an optimisation for the
  latency of one request may do nothing for the throughput of many.
- Stages take turns. Every figure is the median of {rounds} rounds over HTTP, and a gain is the median of the
  ratios within rounds.
- Servers were started with `octavo serve MODEL {common}` and the flags that
  turn off the optimisations of later stages (column "instead of").
"""


def write_page(results: Results, page: Path) -> None:
    assets = page.parent / "assets"
    results.write(assets / "progression.json")
    plot_progression(results, _model(results), assets / "progression.svg")
    page.write_text(page_text(results))


def _model(results: Results) -> str:
    return results.runs[0].case.split("/")[0]


def page_text(results: Results) -> str:
    model = _model(results)
    rounds = results.num_rounds
    mix = next(case.workload.description for case in cases(model) if case.title == MIX)
    machine, (_, last) = results.machine, results.dates
    parts = [INTRODUCTION.format(model=f"`{model}`", rounds=rounds), *_table(results, model), ""]
    parts.append(EXPLANATION.format(mix=mix, rounds=rounds, common=" ".join(COMMON)))
    parts.append(
        f"{machine.processor}, {machine.cores} logical cores, {results.threads} threads, {machine.system};"
        f" {last} UTC. All figures: [progression.json](assets/progression.json)."
    )
    return "\n".join(parts) + "\n"


def _table(results: Results, model: str) -> Iterator[str]:
    by_title = {case.title: case for case in cases(model)}
    whole = by_title[MIX]

    def on_mix(name: str) -> str:
        return number_text(results.median(name, whole, whole.figure))

    yield from table_head(
        ["turned on", "instead of", "workload", "metric", "before", "after", "gain", "mix tok/s"]
    )
    yield row([PLAIN, "", "", "", "", "", "", on_mix(PLAIN)])
    previous = PLAIN
    for stage in stages():
        case = by_title[stage.name]
        values = [results.median(name, case, case.figure) for name in (previous, stage.name)]
        gain = results.paired(stage.name, previous, case, stage.gain)
        cells = [stage.name, f"`{' '.join(OFF[stage.name])}`", stage.workload.description, stage.figure_name]
        cells += [*map(number_text, values), "-" if gain is None else f"{gain:.2f}", on_mix(stage.name)]
        yield row(cells)
        previous = stage.name


def plot_progression(results: Results, model: str, path: Path) -> None:
    """Draw the tokens per second of each stage on the mix, labelled with its gain on its own workload."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    by_title = {case.title: case for case in cases(model)}
    names = [PLAIN, *OFF]
    rates = [results.median(name, by_title[MIX], by_title[MIX].figure) or 0.0 for name in names]
    figure, axes = pyplot.subplots(figsize=(8.5, 3.6))
    axes.bar(range(len(names)), rates, color="#2a6fdb", width=0.6)
    labels = ["", *gains(results, model, stages())]
    for place, (rate, label) in enumerate(zip(rates, labels, strict=True)):
        axes.text(place, rate, f"{rate:,.0f}\n{label}".rstrip(), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=8)
    axes.set_ylim(0, 1.25 * max([*rates, 1.0]))
    axes.set_ylabel("output tok/s on the mixed workload", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save(figure, path)
    pyplot.close(figure)


def gains(results: Results, model: str, chosen: Sequence[Stage]) -> list[str]:
    """Return labels with the gain of each stage over the one before it, on the workload that shows it."""
    by_title = {case.title: case for case in cases(model)}
    before = [PLAIN, *OFF]
    found = [
        results.paired(stage.name, previous, by_title[stage.name], stage.gain)
        for previous, stage in zip(before, chosen, strict=False)
    ]
    return ["" if gain is None else f"x {gain:.2f} on its\nown workload" for gain in found]
