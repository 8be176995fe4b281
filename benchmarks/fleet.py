"""Measures how long streams pause when something happens to the replica that computes them.

python benchmarks/fleet.py MODEL [--replicas 2] [--streams 16] [--tokens 400] [--rounds 3]

kill and stop: from the signal to the next token of each stream of that replica; includes recomputing its
prompt and its tokens elsewhere. drain: from the request to move to the next token, so mostly recomputation.
restart: the longest pause of any stream while all replicas are replaced, one after the other.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chaos.asking import Outcome, Request
from chaos.fleet import EVENTS, Fleet, running_fleet
from octavo.protocol import SamplingParams


def story(number: int, num_tokens: int) -> Request:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=number)
    return f"Story number {number}: once upon a time", params


async def begun_streams(
    fleet: Fleet, streams: int, num_tokens: int, *, num_deltas: int
) -> asyncio.Task[list[Outcome]]:
    """Start streams on a fleet whose replicas are all usable, and wait for the first updates."""
    asker = fleet.asker
    await fleet.until_usable(len(fleet.replicas.supervisors))
    asker.num_deltas = 0
    asking = asyncio.create_task(asker.ask_all([story(number, num_tokens) for number in range(streams)]))
    while asker.num_deltas < num_deltas:
        await asyncio.sleep(0.005)
    return asking


async def pauses_after(fleet: Fleet, event: str, streams: int, num_tokens: int) -> list[float]:
    """Return the seconds from the event to the next token of each stream of the disturbed replica."""
    asker = fleet.asker
    asking = await begun_streams(fleet, streams, num_tokens, num_deltas=streams * num_tokens // 4)
    replica = fleet.replicas.supervisors[-1]
    affected = set(fleet.hub.request_ids(replica.name))
    began = time.monotonic()
    await fleet.disturb(event, replica)
    pauses: dict[str, float] = {}
    moved_at: dict[str, float] = {}
    while affected - pauses.keys():
        await asyncio.sleep(0.001)
        for request_id in affected - pauses.keys():
            has_moved = request_id not in fleet.hub.request_ids(replica.name)
            updated_at = asker.updated_at.get(request_id, time.monotonic())
            if has_moved and request_id not in moved_at:
                moved_at[request_id] = time.monotonic()
            elif has_moved and updated_at > moved_at[request_id]:
                pauses[request_id] = updated_at - began
    await asking
    return list(pauses.values())


async def longest_pause_in_restart(fleet: Fleet, streams: int, num_tokens: int) -> float:
    asker = fleet.asker
    asking = await begun_streams(fleet, streams, num_tokens, num_deltas=streams * 5)
    asker.max_pause = 0.0
    await fleet.replicas.replace_all()
    longest = asker.max_pause
    await asking
    return longest


async def measure(args: argparse.Namespace) -> None:
    async with running_fleet(args.model, args.replicas, max_running=args.streams) as fleet:
        print(f"{'event':>8} {'streams moved':>14} {'median pause':>13} {'longest':>9}")
        for event in EVENTS:
            for _ in range(args.rounds):
                pauses = await pauses_after(fleet, event, args.streams, args.tokens)
                median = statistics.median(pauses)
                print(f"{event:>8} {len(pauses):>14} {median:>11.2f} s {max(pauses):>7.2f} s", flush=True)
        longest = await longest_pause_in_restart(fleet, args.streams, 4 * args.tokens)
        print(f"{'restart':>8} {args.streams:>14} {'':>13} {longest:>7.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
