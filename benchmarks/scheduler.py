"""The scheduler alone: milliseconds of a step by running and waiting sequences and by KV pages.

python benchmarks/scheduler.py [--steps 200]
"""

import argparse

from octavo.simulate.scale import Load, median_step_milliseconds

LOADS = (
    Load(64, 100, 1_000_000),
    Load(512, 100, 1_000_000),
    Load(512, 10_000, 1_000_000),
    Load(512, 10_000, 20_000),
    Load(512, 100_000, 1_000_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200, help="measured steps for each line")
    options = parser.parse_args()
    print(f"{'running':>8} {'waiting':>8} {'pages':>10} {'ms a step (median)':>20}")
    for load, milliseconds in zip(LOADS, median_step_milliseconds(LOADS, options.steps), strict=True):
        print(f"{load.num_running:>8,} {load.num_waiting:>8,} {load.num_blocks:>10,} {milliseconds:>20.2f}")


if __name__ == "__main__":
    main()
