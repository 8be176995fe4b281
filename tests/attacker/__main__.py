"""Attack a real server for some time: `python -m attacker --seconds 60 --seed 7`, with tests/ on the path.

The exit code is 1 if an invariant was violated. The same seed gives the same sequence of actions of each
actor; how many of them run in the time, and in which order between actors, depends on the machine.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from attacker.attack import Settings
from attacker.findings import Invariant
from attacker.planted import run_planted
from attacker.run import Outcome, run
from patience import HANG_SECONDS

MODEL = "smollm2-135m-instruct-q4_1.gguf"
NUM_AGENTS = 3


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the server
    with tempfile.TemporaryDirectory(prefix="attacker-") as name:
        folder = Path(name)
        os.environ.setdefault("OCTAVO_CACHE_DIR", str(folder / "cache"))
        if arguments.planted:
            return run_planted(folder, arguments.bug)
        seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
        settings = Settings(
            seconds=arguments.seconds,
            seed=seed,
            flags=Settings.flags if arguments.flags is None else tuple(arguments.flags.split()),
            num_agents=arguments.fleet,
            num_tenants=arguments.tenants,
            has_faults=not arguments.no_faults,
            stops_at=frozenset(Invariant if arguments.stop else ()),
            patience=min(HANG_SECONDS, arguments.patience),
            min_share=arguments.min_share,
        )
        log = arguments.log or Path(tempfile.gettempdir()) / f"attack-{seed}.log"
        print(f"seed {seed}; actions are logged to {log}")
        outcome = run(_model(arguments.model), folder, settings, log)
    report(outcome, seed)
    return 0 if outcome.is_clean else 1


def report(outcome: Outcome, seed: int) -> None:
    print(outcome.summary)
    if outcome.is_clean:
        return
    print(f"\nlast actions before the first violation (seed {seed}):")
    for line in outcome.findings.last_violation_actions:
        print(f"  {line}")
    print("\nend of the server's log:")
    print(outcome.log[-3000:])
    print(f"\n{len(outcome.findings.violations)} violations, seed {seed}:")
    for violation in outcome.findings.violations:
        print(f"  {violation}")


def _model(path: Path | None) -> Path:
    if path is not None:
        return path
    assets = os.environ.get("OCTAVO_TEST_ASSETS")
    if not assets:
        sys.exit("OCTAVO_TEST_ASSETS is not set: it names the folder with the real test models")
    return Path(assets) / MODEL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attacker", description="attack a real server")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the attack")
    parser.add_argument("--seed", type=int, help="seed of all actions (default: a new one)")
    parser.add_argument("--tenants", type=int, default=5, help="number of tenants that send requests")
    parser.add_argument("--log", type=Path, help="file for the actions")
    parser.add_argument("--model", type=Path, help="checkpoint to serve")
    parser.add_argument(
        "--fleet",
        type=int,
        nargs="?",
        const=NUM_AGENTS,
        default=0,
        metavar="REPLICAS",
        help=f"attack a fleet across machines: number of replicas ({NUM_AGENTS} without a number)",
    )
    parser.add_argument("--flags", help="flags of the server, or of the replicas; separated by spaces")
    parser.add_argument("--no-faults", action="store_true", help="kill and stop no process")
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    parser.add_argument(
        "--patience", type=float, default=HANG_SECONDS, help="seconds until a hang is reported"
    )
    parser.add_argument("--min-share", type=float, default=0.7, help="minimum part of a tenant's share")
    parser.add_argument("--planted", action="store_true", help="check that planted bugs are found")
    parser.add_argument("--bug", help="plant only the bug with this name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
