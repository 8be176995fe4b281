"""Compares quantised formats: memory, speed and perplexity of one model in several files.

    python -m benchmarks.formats FILE... [--windows 5] [--rounds 5] [--llama-cpp DIR] [--json OUT]
                                         [--plot OUT.svg]

All files are open at the same time (their packed weights are mapped), and rounds are interleaved; figures
are medians. Perplexity is computed on windows of 1,024 tokens of a stored text, once with weights as stored
and once widened to bfloat16. The two must be equal to the last digit, or the program fails. With
`--llama-cpp` (its folder, as made by benchmarks/peers/install.sh), llama.cpp computes the perplexity of the
same tokens as well.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.plots import COLOURS, save

from octavo import LLM, SamplingParams
from octavo.checkpoint import open_checkpoint
from octavo.text.tokenizer import Tokenizer

TEXT = Path(__file__).resolve().parents[1] / "tests" / "data" / "prose.txt"
WINDOW = 1024
DECODED = 24  # tokens per stream and round
STREAMS = (1, 16)


@dataclass
class FormatFigures:
    """The figures of one file; speeds are medians."""

    name: str
    gigabytes: float  # of weights in memory
    perplexity: float
    peer_perplexity: float | None = None  # llama.cpp's
    decode: dict[int, float] = field(default_factory=dict)  # tokens per second, by number of streams
    prompt: float = 0.0  # tokens per second


def windows_of(path: str, count: int) -> list[list[int]]:
    ids = Tokenizer(open_checkpoint(path).text).encode(TEXT.read_text())
    return [ids[WINDOW * i : WINDOW * (i + 1)] for i in range(count)]


def perplexity(llm: LLM, windows: Sequence[list[int]]) -> float:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    outputs = llm.generate(list(windows), params, progress=False)
    scores = [score.logprob for output in outputs for score in output.prompt_logprobs or ()]
    return math.exp(-sum(scores) / len(scores))


def peer_perplexity(llama_cpp: Path, path: str, windows: Sequence[list[int]]) -> float:
    """Return the perplexity according to llama.cpp's logits."""
    program = Path(__file__).resolve().parent / "peers" / "llama_logits.py"
    environment = {
        "PYTHONPATH": str(llama_cpp / "unpacked"),
        "LLAMA_CPP_LIB_PATH": str(llama_cpp / "build" / "bin"),
    }
    run = subprocess.run(
        [llama_cpp / "bin" / "python", program, path],
        input=json.dumps(windows),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    total, count = json.loads(run.stdout)
    return math.exp(-total / count)


def open_model(path: str, **options: Any) -> LLM:
    return LLM(path, kv_memory="384MiB", prefix_caching=False, progress=False, **options)


def decoded_per_second(llm: LLM, streams: int, seed: int) -> float:
    """Return the rate at which all streams generate `DECODED` tokens after a prompt of one token."""
    params = SamplingParams(max_tokens=DECODED, temperature=1.0, seed=seed, ignore_eos=True)
    started = time.perf_counter()
    llm.generate([[100 + stream] for stream in range(streams)], params, progress=False)
    return streams * DECODED / (time.perf_counter() - started)


def prefilled_per_second(llm: LLM, prompt: list[int]) -> float:
    started = time.perf_counter()
    llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0), progress=False)
    return len(prompt) / (time.perf_counter() - started)


def measure_perplexity(path: str, windows: Sequence[list[int]], llama_cpp: Path | None) -> FormatFigures:
    with open_model(path, weights="widened") as widened:
        expected = perplexity(widened, windows)
    with open_model(path) as stored:
        found = perplexity(stored, windows)
        gigabytes = sum(stored.facts.weight_bytes.values()) / 1e9
    if found != expected:
        sys.exit(f"{path}: perplexity {found!r}, but {expected!r} with widened weights")
    figures = FormatFigures(Path(path).stem, gigabytes, found)
    if llama_cpp is not None:
        figures.peer_perplexity = peer_perplexity(llama_cpp, path, windows)
    peer = f", llama.cpp {figures.peer_perplexity:.6f}" if figures.peer_perplexity else ""
    print(
        f"{figures.name:>40}  {gigabytes:6.2f} GB  perplexity {found:.6f}, stored and widened{peer}",
        flush=True,
    )
    return figures


def measure_speeds(
    paths: Sequence[str], all_figures: Sequence[FormatFigures], prompt: list[int], rounds: int
) -> None:
    """Measure speeds and write them to the figures."""
    models = [open_model(path) for path in paths]
    samples: dict[tuple[int, int], list[float]] = {}
    for turn in range(rounds):
        for number, llm in enumerate(models):
            for streams in STREAMS:
                samples.setdefault((number, streams), []).append(decoded_per_second(llm, streams, turn))
            samples.setdefault((number, 0), []).append(prefilled_per_second(llm, prompt))
    for number, figures in enumerate(all_figures):
        figures.decode = {streams: statistics.median(samples[number, streams]) for streams in STREAMS}
        figures.prompt = statistics.median(samples[number, 0])
        models[number].close()


def print_table(all_figures: Sequence[FormatFigures]) -> None:
    print(f"\n{'file':>40}  {'GB':>6}  {'perplexity':>10}  {'1 stream':>8}  {'16':>8}  {'prompt':>8}")
    for figures in all_figures:
        speeds = "  ".join(f"{speed:8.1f}" for speed in (*figures.decode.values(), figures.prompt))
        print(f"{figures.name:>40}  {figures.gigabytes:6.2f}  {figures.perplexity:10.4f}  {speeds}")


def plot(all_figures: Sequence[FormatFigures], path: Path) -> None:
    """Plot size against perplexity; the area of a disc is the speed of one stream."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(figsize=(7.0, 4.2))
    best = max(figures.decode[1] for figures in all_figures)
    for figures in all_figures:
        axes.scatter(
            figures.gigabytes, figures.perplexity, 600 * figures.decode[1] / best, COLOURS[0], alpha=0.35
        )
        label = f"{figures.name}\n{figures.decode[1]:.1f} tokens/s"
        axes.annotate(label, (figures.gigabytes, figures.perplexity), fontsize=7, ha="center", va="center")
    axes.margins(0.15)  # discs and labels extend beyond their points
    axes.set_xlabel("weights in memory, GB")
    axes.set_ylabel("perplexity")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save(chart, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of speed measurements; 0 skips them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    arguments = parser.parse_args()
    if arguments.plot and not arguments.rounds:
        parser.error("no speeds to plot: use --rounds 1 or more")
    windows = windows_of(arguments.files[0], arguments.windows)
    all_figures = [measure_perplexity(path, windows, arguments.llama_cpp) for path in arguments.files]
    if arguments.rounds:
        measure_speeds(arguments.files, all_figures, windows[0], arguments.rounds)
        print_table(all_figures)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figures) for figures in all_figures], indent=2) + "\n")
    if arguments.plot:
        plot(all_figures, arguments.plot)


if __name__ == "__main__":
    main()
