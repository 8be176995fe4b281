"""Compare Octavo with other engines on this machine.

    benchmarks/peers/install.sh DEST                        install the peers, each in its own environment
    python -m benchmarks.peers models DEST --smollm2 FILE.gguf --qwen FILE.gguf --tokenizer FOLDER
                                                            make the models that all engines run
    python -m benchmarks.peers run DEST                     measure; an interrupted run is continued
    python -m benchmarks.peers page                         write docs/benchmarks-peers.md and its charts

Engines that are not installed are skipped and reported.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.peers.engines import engines
from benchmarks.peers.models import Sources, make_models
from benchmarks.peers.page import write_page
from benchmarks.peers.plan import cases
from benchmarks.peers.results import Results, this_machine
from benchmarks.peers.run import Comparison, RunSettings, say

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/assets/benchmarks-peers.json"
PAGE = ROOT / "docs/benchmarks-peers.md"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("models", help="make the models")
    making.add_argument("dest", type=Path, help="folder in which install.sh installed the peers")
    making.add_argument("--smollm2", type=Path, help="GGUF file of SmolLM2-135M-Instruct, Q4_1")
    making.add_argument("--qwen", type=Path, help="GGUF file of Qwen2.5-Coder-1.5B-Instruct, Q4_K_M")
    making.add_argument("--tokenizer", type=Path, help="folder with Llama 3.2's tokenizer.json")
    running = commands.add_parser("run", help="measure, then write the page")
    running.add_argument("dest", type=Path, help="folder in which install.sh installed the peers")
    running.add_argument("--rounds", type=int, default=3, help="number of times every engine runs every case")
    running.add_argument("--threads", type=int, default=os.cpu_count())
    running.add_argument(
        "--cases", nargs="+", default=[], metavar="PART", help="only cases whose name contains a PART"
    )
    running.add_argument(
        "--engines", nargs="+", default=[], metavar="PART", help="only engines whose name contains a PART"
    )
    running.add_argument("--again", action="store_true", help="discard existing results first")
    running.add_argument("--lock", type=Path, help="file to lock while an engine is measured")
    for command in (running, commands.add_parser("page", help="write the page from the results")):
        command.add_argument("--results", type=Path, default=RESULTS, help="JSON file (default: %(default)s)")
        command.add_argument("--page", type=Path, default=PAGE, help="Markdown file (default: %(default)s)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # to end the engines
    if options.command == "models":
        sources = Sources(options.smollm2, options.qwen, options.tokenizer)
        make_models(options.dest, options.dest / "models", sources)
        return 0
    if options.command == "run":
        run(options)
    write_page(Results.read(options.results), options.page)
    say(f"wrote {options.page}")
    return 0


def run(options: argparse.Namespace) -> None:
    dest = options.dest.resolve()
    chosen = [
        case for case in cases() if not options.cases or any(part in case.key for part in options.cases)
    ]
    wanted = [
        engine
        for engine in engines(dest)
        if not options.engines or any(part.lower() in engine.name.lower() for part in options.engines)
    ]
    results = Results(this_machine(), options.threads)
    if options.results.exists() and not options.again:
        results = Results.read(options.results)
    settings = RunSettings(
        models=dest / "models",
        logs=dest / "logs",
        results=options.results,
        threads=options.threads,
        rounds=options.rounds,
        lock=options.lock,
    )
    for engine in engines(dest):
        if engine not in wanted and not any(engine.name == known.name for known in results.engines):
            results = results.with_left_out(engine.name, "not chosen for this run")
    with Comparison(settings, wanted, results) as comparison:
        comparison.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
