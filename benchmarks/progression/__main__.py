"""What each optimisation is worth: python -m benchmarks.progression MODEL

Measures every stage beside the one before it, and writes docs/progression.md with its picture. Stopped and
started again, it goes on where it was.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.peers.results import Results, this_machine
from benchmarks.peers.run import Comparison, Settings, say
from benchmarks.progression.page import write_page
from benchmarks.progression.stages import cases, engines, miniature

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.progression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a checkpoint with a context of 1,024 tokens or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="PART", help="only cases with these in them"
    )
    parser.add_argument("--again", action="store_true", help="begin anew; else it goes on with the results")
    parser.add_argument("--short", action="store_true", help="the size of a test")
    parser.add_argument("--lock", type=Path, help="a file to lock while stages are measured")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/progression.md")
    parser.add_argument(
        "--logs", type=Path, default=Path(".progression"), help="folder for the servers' logs"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that the servers are ended
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
    settings = Settings(
        models=model.parent,
        logs=options.logs,
        results=path,
        threads=options.threads,
        rounds=options.rounds,
        hopeless=0.0,
        lock=options.lock,
    )
    with Comparison(settings, engines(), results) as comparison:
        comparison.run(chosen)
        write_page(comparison.results, options.page)
    say(f"{options.page} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
