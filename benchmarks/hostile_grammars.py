"""Sends hostile grammars over HTTP, which must be rejected in time or bounded, and times other streams.

python benchmarks/hostile_grammars.py MODEL [--streams 8] [--tokens 400] [--rounds 3] [--dtype bfloat16]

Use a real MODEL: compared with the steps of a tiny one, everything else would be slow. Rounds with and
without the grammars of tests/grammar/hostile.py alternate. An accepted grammar may generate four tokens.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from grammar.hostile import HOSTILE
from load.figure import Row, percentile, run, servers, table
from load.requests import completion
from load.wire import COMPLETIONS, Answer, ask
from octavo.protocol import GrammarKind, GrammarSpec
from server.process import Server

FIELDS = {
    GrammarKind.JSON_SCHEMA: "json",
    GrammarKind.REGEX: "regex",
    GrammarKind.LARK: "grammar",
    GrammarKind.CHOICE: "choice",
}
REJECTED_WITHIN = 2.0  # seconds
MAX_SLOWDOWN = 1.2


async def measure(server: Server, neighbours: int, tokens: int, rounds: int) -> list[Row]:
    bodies = [body for spec in HOSTILE.values() if (body := _body(spec)) is not None]
    quiet: list[float] = []
    disturbed: list[float] = []
    hostile: list[Answer] = []
    for _ in range(rounds):
        quiet += await _gaps(server, neighbours, tokens)
        async with asyncio.TaskGroup() as group:
            streams = group.create_task(_gaps(server, neighbours, tokens))
            attack = group.create_task(_attack(server, bodies, streams))
        disturbed += streams.result()
        hostile += attack.result()
    rejected = [answer for answer in hostile if answer.status in (400, 413)]
    others = {answer.status for answer in hostile} - {200, 400, 413}
    slowest = max(answer.seconds for answer in rejected)
    ratio = statistics.median(disturbed) / statistics.median(quiet)
    size = f"{len(hostile)} grammars, {len(rejected)} rejected"
    return [
        Row(
            "hostile grammars: rejected",
            size,
            f"{slowest:.2f} s maximum, p50 {percentile([a.seconds for a in rejected], 50):.3f} s",
            f"400 within {REJECTED_WITHIN:.0f} s; no other failures",
            slowest <= REJECTED_WITHIN and not others,
        ),
        Row(
            "hostile grammars: other streams",
            f"{neighbours} streams x {tokens} tokens, {rounds} rounds",
            f"{ratio:.2f}x time between tokens",
            f"at most {MAX_SLOWDOWN}x",
            ratio <= MAX_SLOWDOWN,
        ),
    ]


def _body(spec: GrammarSpec) -> dict[str, Any] | None:
    """Return a request with the grammar; None if the API has no field for its kind."""
    if spec.kind not in FIELDS:
        return None
    value = json.loads(spec.text) if spec.kind is GrammarKind.CHOICE else spec.text
    grammar = {"structured_outputs": {FIELDS[spec.kind]: value}}
    return {"prompt": "x", "max_tokens": 4, "seed": 1} | grammar


async def _gaps(server: Server, streams: int, tokens: int) -> list[float]:
    """Return the mean seconds between two tokens of each stream."""

    async def gap(number: int) -> float:
        answer = await ask(server.port, COMPLETIONS, completion(number, tokens, stream=True))
        assert answer.status == 200, bytes(answer.body)
        assert answer.done_at is not None
        return (answer.done_at - answer.sent_at - answer.seconds_to_first) / (tokens - 1)

    return list(await asyncio.gather(*(gap(number) for number in range(streams))))


async def _attack(
    server: Server, bodies: list[dict[str, Any]], streams: "asyncio.Task[list[float]]"
) -> list[Answer]:
    """Send the grammars one after the other, repeatedly, until the streams end."""
    answers: list[Answer] = []
    while not streams.done():
        answers += [await ask(server.port, COMPLETIONS, body) for body in bodies]
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="tokens per stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    flags = ("--max-running", "32", "--kv-memory", "512MiB", "--dtype", options.dtype)
    with tempfile.TemporaryDirectory() as folder, servers(options.model, Path(folder)) as start:
        rows = run(measure(start(*flags), options.streams, options.tokens, options.rounds))
    print(table(rows))
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
