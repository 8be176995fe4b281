"""Measures the figures of docs/reliability.md in full size, over HTTP, on servers that it starts.

python benchmarks/server_load.py [NAME ...] [--model MODEL] [--short]

NAMEs are those of tests/load/figures.py; without a name, all run. The default MODEL is the tiny model of
the tests. The exit code is 1 if a target is missed. tests/load/test_load.py runs the same in the size of
--short, for CI.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from data.tiny_llama import write_tiny_llama
from load.figure import servers, table
from load.figures import FIGURES


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [figure.name for figure in FIGURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(names)}")
    parser.add_argument("--model", type=Path, help="checkpoint with a context of at least 512 tokens")
    parser.add_argument("--short", action="store_true", help="use the size of CI")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown NAME {', '.join(sorted(unknown))}: use any of {', '.join(names)}")
    is_met = True
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            model = Path(folder) / "tiny"
            model.mkdir()
            write_tiny_llama(model)
        for figure in FIGURES:
            if not options.names or figure.name in options.names:
                started = time.monotonic()
                with servers(model, Path(folder)) as start:
                    rows = (figure.short if options.short else figure.full)(start)
                print(f"{figure.name}, {time.monotonic() - started:.1f} s\n{table(rows)}\n", flush=True)
                is_met = is_met and all(row.is_met for row in rows)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
