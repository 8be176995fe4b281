"""Measures the router: decisions per second, memory of the prefix index, cache hits and balance.

python benchmarks/routing.py MODEL [--part decisions index hits hot] [--replicas 1000] [--prefixes 10000000]

Only the tokenizer of MODEL is used. Hits and balance are those of a simulated fleet with a virtual clock, in
which hub, router, schedulers and caches are the real ones.
"""

import argparse
import random
import resource
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint import open_checkpoint
from octavo.fleet.cost import RequestSize
from octavo.fleet.prefixes import FleetPrefixes
from octavo.fleet.router import Router
from octavo.kernels.prefix_index import load_prefix_library
from octavo.simulate.fleet import FleetSize, RoundRobin, SimulatedFleet, SimulatedSpeed
from octavo.simulate.fleet_traces import Conversations, send_hot_prefix
from octavo.text.tokenizer import Tokenizer

BLOCK_SIZE = 16
PROMPT_TOKENS = 8192


@dataclass
class RandomLoad:
    num_sequences: int
    num_prompt_tokens: int
    is_usable: bool = True
    blocks_available: int | None = None
    seconds_per_prompt_token: float = 1e-3
    seconds_per_sequence: float = 1e-3


def measure_decisions(num_replicas: int, num_decisions: int) -> None:
    """Prompts of 8k tokens: a tenth are new, the others repeat up to all of an earlier one."""
    rng = random.Random(1)
    router = Router.with_prefixes()
    for number in range(num_replicas):
        router.add(f"r{number}", RandomLoad(rng.randrange(64), rng.randrange(1000)))
        router.connect(f"r{number}", "fingerprint", BLOCK_SIZE, 8192)
    prompts = [tuple(rng.choices(range(50_000), k=PROMPT_TOKENS)) for _ in range(40)]
    size = RequestSize(PROMPT_TOKENS, 256)
    seconds = []
    for number in range(num_decisions):
        kept = rng.randrange(PROMPT_TOKENS) if number % 10 else 0
        rest = tuple(rng.choices(range(50_000), k=PROMPT_TOKENS - kept))
        prompt = prompts[rng.randrange(40)][:kept] + rest
        started = time.perf_counter()
        keys = router.keys("", prompt)
        route = router.choose(f"q{number}", size, keys)
        assert route is not None
        router.promise(route.replica, keys)
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    per_second = len(seconds) / sum(seconds)
    middle, last = (1e3 * seconds[int(part * len(seconds))] for part in (0.5, 0.99))
    print(
        f"decisions: {per_second:,.0f} per second (target 2,000), median {middle:.2f} ms,"
        f" p99 {last:.2f} ms (target 1 ms): {num_replicas:,} replicas, {PROMPT_TOKENS:,} tokens"
    )


def resident_mib() -> float:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * resource.getpagesize() / (1 << 20)


def measure_index(num_replicas: int, num_prefixes: int) -> None:
    """Distinct prefixes of one block each, spread over all replicas."""
    library = load_prefix_library()
    assert library is not None, "the native library was not built"
    rng = random.Random(1)
    before = resident_mib()
    prefixes = FleetPrefixes(library)
    for number in range(num_replicas):
        prefixes.connect(f"r{number}", 1 << 20)
    chunk = 1000
    for part in range(1, 6):
        started = time.perf_counter()
        for _ in range(num_prefixes // 5 // chunk):
            keys = array("Q", rng.randbytes(8 * chunk))
            prefixes.promise(f"r{rng.randrange(num_replicas)}", keys)
        each = (time.perf_counter() - started) / (num_prefixes / 5)
        print(
            f"index: {part * num_prefixes // 5:>12,} prefixes: {prefixes.num_bytes >> 20} MiB,"
            f" process +{resident_mib() - before:.0f} MiB, {1e9 * each:.0f} ns each"
        )
    last = keys[-100:]
    assert prefixes.match(last, 8, 0), "the newest prefix is known"
    started = time.perf_counter()
    for number in range(num_replicas):
        prefixes.disconnect(f"r{number}")
    forgetting = (time.perf_counter() - started) / num_replicas
    assert not prefixes.match(last, 8, 0)
    print(f"index: a replica is forgotten in {1e6 * forgetting:.1f} us")


def measure_hits(tokenizer: Tokenizer) -> None:
    """Conversations of several tenants; one replica is as fast and has as much memory as four together."""
    rates = {}
    for name, count, router in (
        ("one replica", 1, Router.with_prefixes()),
        ("four", 4, Router.with_prefixes()),
        ("four, in turns", 4, RoundRobin()),
    ):
        for num_blocks in (4096, 8192):
            speed = SimulatedSpeed(0.010, 0.001 * count / 4, 0.001 * count / 4)
            size = FleetSize(count, num_blocks // count, max_running=256 // count)
            fleet = SimulatedFleet(
                size, tokenizer, router=router.__class__(load_prefix_library()), speed=speed
            )
            Conversations(fleet, num_tenants=8, num_conversations=96, num_turns=8)
            fleet.run()
            rate = rates[name, num_blocks] = fleet.hit_rate
            print(
                f"hits: {name:<15} {num_blocks:,} blocks: {rate:.3f} of prompt tokens,"
                f" {rate / rates['one replica', num_blocks]:.3f} of one replica"
            )


def measure_hot_prefix(tokenizer: Tokenizer) -> None:
    for prefix in (500, 2000, 4000):
        for per_second in (2.0, 6.0, 8.0):
            fleet = SimulatedFleet(FleetSize(4, 4096), tokenizer)
            send_hot_prefix(fleet, num_requests=600, per_second=per_second, prefix=prefix)
            fleet.run()
            use = sum(replica.busy_seconds for replica in fleet.replicas) / (4 * fleet.now)
            print(
                f"hot prefix of {prefix:>5,} tokens, {per_second:g} a second, {100 * use:.0f} % busy:"
                f" the busiest {fleet.imbalance:.2f} of the mean (target 1.25), hits {fleet.hit_rate:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["decisions", "index", "hits", "hot"]
    parser.add_argument("model", help="checkpoint of the tokenizer")
    parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--prefixes", type=int, default=10_000_000)
    options = parser.parse_args()
    tokenizer = Tokenizer(open_checkpoint(options.model).text)
    if "decisions" in options.part:
        measure_decisions(options.replicas, options.decisions)
    if "index" in options.part:
        measure_index(options.replicas, options.prefixes)
    if "hits" in options.part:
        measure_hits(tokenizer)
    if "hot" in options.part:
        measure_hot_prefix(tokenizer)


if __name__ == "__main__":
    main()
