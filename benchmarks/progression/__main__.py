"""Measure what each optimisation gains: python -m benchmarks.progression MODEL

Compares every stage with the one before it, and writes docs/progression.md and its chart. An interrupted run
continues when started again.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.peers.results import Results, this_machine
from benchmarks.peers.run import Comparison, RunSettings, say
from benchmarks.progression.page import write_page
from benchmarks.progression.stages import cases, engines, miniature

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.progression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="checkpoint with a context of 1,024 tokens or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="PART", help="only cases whose name contains a PART"
    )
    parser.add_argument("--again", action="store_true", help="discard existing results first")
    parser.add_argument("--short", action="store_true", help="small workloads, as in the tests")
    parser.add_argument("--lock", type=Path, help="file to lock while stages are measured")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/progression.md")
    parser.add_argument(
        "--logs", type=Path, default=Path(".progression"), help="folder for the logs of the servers"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # to end the servers
    model = options.model.resolve()
    path = options.page.parent / "assets/progression.json"
    results = Results(this_machine(), options.threads)
    if path.exists() and not options.again:
        results = Results.read(path)
    chosen = [
        case for case in cases(model.name) if not options.cases or any(p in case.key for p in options.cases)
    ]
    if options.short:
        chosen = [miniature(case) for case in chosen]
    settings = RunSettings(
        models=model.parent,
        logs=options.logs,
        results=path,
        threads=options.threads,
        rounds=options.rounds,
        give_up_ratio=0.0,
        lock=options.lock,
    )
    with Comparison(settings, engines(), results) as comparison:
        comparison.run(chosen)
        write_page(comparison.results, options.page)
    say(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
