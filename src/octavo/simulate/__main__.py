"""`python -m octavo.simulate --steps 100000 --seed 1`: run worlds, print what happened."""

import argparse
import sys
import time
import zlib

from octavo.simulate.ticket import Violation
from octavo.simulate.world import World, run_worlds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo.simulate", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=100_000, help="steps to make, over as many worlds as it takes"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first world; the next has the next")
    parser.add_argument(
        "--replay", action="store_true", help="run the one world of --seed and print its digest"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    try:
        if options.replay:
            log: list[bytes] = []
            print(World(options.seed, log).run())
            print(f"digest {zlib.crc32(b''.join(log)):08x} of {len(log)} plans")
            return 0
        figures = run_worlds(options.seed, options.steps)
    except Violation as violation:
        print(
            f"violation at {violation}\nReplay it: python -m octavo.simulate --replay --seed SEED",
            file=sys.stderr,
        )
        return 1
    seconds = time.perf_counter() - started
    print(f"{figures}\n{figures.steps / seconds:,.0f} steps a second, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
