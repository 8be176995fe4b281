"""Run simulations and print statistics: `python -m octavo.simulate --steps 100000 --seed 1`."""

import argparse
import sys
import time
import zlib

from octavo.simulate.simulation import Simulation, run_simulations
from octavo.simulate.tracked_request import Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo.simulate", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=100_000, help="total number of steps, over as many simulations as needed"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the first simulation; each further one uses the next seed",
    )
    parser.add_argument(
        "--replay", action="store_true", help="run only the simulation of --seed and print its digest"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    try:
        if options.replay:
            log: list[bytes] = []
            print(Simulation(options.seed, log).run())
            print(f"digest {zlib.crc32(b''.join(log)):08x} of {len(log)} plans")
            return 0
        figures = run_simulations(options.seed, options.steps)
    except Violation as violation:
        print(
            f"violation at {violation}\nTo replay: python -m octavo.simulate --replay --seed SEED",
            file=sys.stderr,
        )
        return 1
    seconds = time.perf_counter() - started
    print(f"{figures}\n{figures.steps / seconds:,.0f} steps per second, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
