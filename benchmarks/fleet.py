"""Measures how long streams pause when something happens to the replica that computes them.

python benchmarks/fleet.py MODEL [--replicas 2] [--streams 16] [--tokens 400] [--rounds 3]
python benchmarks/fleet.py MODEL --measure drain --replicas 2 --streams 64
python benchmarks/fleet.py MODEL --measure rolling --replicas 4 --streams 32

pauses (the default): from the event to the next token of each stream of that replica; includes recomputing
its prompt and its tokens elsewhere. After a drain, a stream first continues where it is, until it moves.
restart: the longest pause of any stream while all replicas are replaced, one after the other.

drain: from `octavo fleet drain` until the replica has no streams; the pauses of the streams that moved; and,
on the idle fleet afterwards, the time to the first token of prompts as long as those streams were: of one,
and of as many at once as moved.

rolling: streams are sent without pause while `octavo fleet restart` runs. Lost streams, streams that differ
from the undisturbed ones, and the longest pause of any.
"""

import argparse
import asyncio
import random
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


async def drain(fleet: Fleet, args: argparse.Namespace) -> None:
    asking = await begun_streams(fleet, args.streams, args.tokens, num_deltas=args.streams * args.tokens // 4)
    asker, replica = fleet.asker, fleet.replicas.supervisors[-1]
    moving = set(fleet.hub.request_ids(replica.name))
    before = {key: asker.updated_at[key] for key in moving}  # of the last update at the old replica
    pauses: dict[str, float] = {}
    drained, began = None, time.monotonic()
    restarting = asyncio.create_task(fleet.replicas.restart(replica.name))
    while moving - pauses.keys() or drained is None:
        await asyncio.sleep(0.001)
        there = set(fleet.hub.request_ids(replica.name)) if drained is None else set()
        if not there and drained is None:
            drained = time.monotonic() - began
        for key in moving - pauses.keys():
            updated_at = asker.updated_at.get(key)
            if key in there and updated_at is not None:
                before[key] = updated_at
            elif updated_at is None or updated_at > before[key]:  # None: it has ended
                pauses[key] = 0.0 if updated_at is None else updated_at - before[key]
    await asking
    await restarting
    await fleet.until_usable(args.replicas)
    print(f"{len(pauses)} of {args.streams} streams moved; the replica had none after {drained:.2f} s")
    print(f"pauses: median {statistics.median(pauses.values()):.2f} s, longest {max(pauses.values()):.2f} s")
    length = 12 + args.tokens // 4
    for number in (1, len(pauses)):
        seconds = await seconds_to_compute(fleet, number, length)
        print(f"recomputation alone: {number} x about {length} tokens in {seconds:.2f} s")


async def seconds_to_compute(fleet: Fleet, number: int, length: int) -> float:
    """Return the seconds until prompts of this length, in no cache, have a first token at one replica."""
    (*others, _) = fleet.replicas.supervisors
    for other in others:
        fleet.hub.drain(other.name)  # only marks them: the fleet is idle
    one_token = SamplingParams(max_tokens=1, temperature=0)
    prompts = [[random.randrange(1000, 2000) for _ in range(length)] for _ in range(number)]
    began = time.monotonic()
    await asyncio.gather(*(fleet.asker.ask(prompt, one_token) for prompt in prompts))
    seconds = time.monotonic() - began
    for other in others:
        fleet.hub.end_drain(other.name)
    return seconds


async def rolling(fleet: Fleet, args: argparse.Namespace) -> None:
    requests = [story(number, args.tokens) for number in range(args.streams)]
    expected = await fleet.asker.ask_all(requests)
    is_over = asyncio.Event()
    received: list[bool] = []

    async def stream(number: int) -> None:
        while not is_over.is_set():
            received.append(await fleet.asker.ask_all([requests[number]]) == [expected[number]])

    streams = [asyncio.create_task(stream(number)) for number in range(args.streams)]
    fleet.asker.num_deltas = 0
    while fleet.asker.num_deltas < 5 * args.streams:
        await asyncio.sleep(0.01)
    fleet.asker.max_pause, moves, began = 0.0, fleet.hub.num_moves, time.monotonic()
    await fleet.replicas.replace_all()
    seconds, longest = time.monotonic() - began, fleet.asker.max_pause
    is_over.set()
    await asyncio.gather(*streams)
    print(
        f"{args.replicas} replicas restarted in {seconds:.1f} s under {args.streams} streams:"
        f" {len(received)} answers, {received.count(False)} lost or different,"
        f" {fleet.hub.num_moves - moves} moves, longest pause {longest:.2f} s"
    )


async def measure(args: argparse.Namespace) -> None:
    async with running_fleet(args.model, args.replicas, max_running=args.streams) as fleet:
        if args.measure != "pauses":
            await {"drain": drain, "rolling": rolling}[args.measure](fleet, args)
            return
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
    parser.add_argument("--measure", choices=("pauses", "drain", "rolling"), default="pauses")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
