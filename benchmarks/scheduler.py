"""Measures the scheduler alone: milliseconds per step by sequences, KV blocks and tenants.

python benchmarks/scheduler.py [--steps 200]
"""

import argparse
from statistics import median

from octavo.simulate.scale import SchedulerLoad, step_milliseconds

LOADS = (
    SchedulerLoad(64, 100, 1_000_000),
    SchedulerLoad(512, 100, 1_000_000),
    SchedulerLoad(512, 10_000, 1_000_000),
    SchedulerLoad(512, 10_000, 20_000),
    SchedulerLoad(512, 100_000, 1_000_000),
    SchedulerLoad(512, 10_000, 1_000_000, 10),
    SchedulerLoad(512, 10_000, 1_000_000, 1_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200, help="measured steps per line")
    options = parser.parse_args()
    print(f"{'running':>8} {'waiting':>8} {'blocks':>10} {'tenants':>8} {'ms/step (median)':>20}")
    for load, milliseconds in zip(LOADS, step_milliseconds(LOADS, options.steps), strict=True):
        print(
            f"{load.num_running:>8,} {load.num_waiting:>8,} {load.num_blocks:>10,} {load.num_tenants:>8,}"
            f" {median(milliseconds):>20.2f}"
        )


if __name__ == "__main__":
    main()
