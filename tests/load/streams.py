"""Many streams at once: nothing is lost, doubled or misplaced."""

import asyncio
from collections import Counter

from load.figure import Row, Start, run
from load.requests import completion
from load.wire import COMPLETIONS, Told, ask
from server.process import Server


def measure(start: Start, *, streams: int, tokens: int, distinct: int) -> list[Row]:
    """So many of the streams have requests of their own; the others ask the same again."""
    server = start("--max-running", "256", "--kv-memory", "64MiB")
    alone, together = run(_tell(server, streams, tokens, distinct))
    wrong = Counter(_fault(alone[n % distinct], told) for n, told in enumerate(together))
    good = wrong.pop("", 0)
    faults = (
        ", ".join(f"{count} {fault}" for fault, count in wrong.items()) or "0 tokens lost, doubled, misplaced"
    )
    return [
        Row(
            "streams at once",
            f"{streams} x {tokens} tokens, {distinct} alone",
            f"{good} equal; {faults}",
            "all equal, one finish and one [DONE] each",
            good == streams,
        )
    ]


async def _tell(server: Server, streams: int, tokens: int, distinct: int) -> tuple[list[Told], list[Told]]:
    alone = [(await ask(server.port, COMPLETIONS, completion(n, tokens))).told for n in range(distinct)]
    bodies = [completion(n % distinct, tokens, stream=True) for n in range(streams)]
    answers = await asyncio.gather(*(ask(server.port, COMPLETIONS, body) for body in bodies))
    return alone, [answer.told for answer in answers]


def _fault(alone: Told, told: Told) -> str:
    if told.num_ends != 1 or len(told.finish_reasons) != 1:
        return "ended otherwise than once"
    if told.token_ids != alone.token_ids:
        return "with other tokens"
    return "" if told == alone else "with other text or logprobs"
