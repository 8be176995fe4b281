"""Many streams at once: nothing is lost, doubled or misplaced."""

import asyncio
from collections import Counter

from load.figure import Row, Start, run
from load.requests import completion
from load.wire import COMPLETIONS, ReceivedAnswer, ask
from server.process import Server


def measure(start: Start, *, streams: int, tokens: int, distinct: int) -> list[Row]:
    """`distinct` of the streams have different requests; the others repeat them."""
    server = start("--max-running", "256", "--kv-memory", "64MiB")
    alone, together = run(_receive(server, streams, tokens, distinct))
    wrong = Counter(_fault(alone[n % distinct], received) for n, received in enumerate(together))
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


async def _receive(
    server: Server, streams: int, tokens: int, distinct: int
) -> tuple[list[ReceivedAnswer], list[ReceivedAnswer]]:
    alone = [(await ask(server.port, COMPLETIONS, completion(n, tokens))).received for n in range(distinct)]
    bodies = [completion(n % distinct, tokens, stream=True) for n in range(streams)]
    answers = await asyncio.gather(*(ask(server.port, COMPLETIONS, body) for body in bodies))
    return alone, [answer.received for answer in answers]


def _fault(alone: ReceivedAnswer, received: ReceivedAnswer) -> str:
    if received.num_ends != 1 or len(received.finish_reasons) != 1:
        return "did not end exactly once"
    if received.token_ids != alone.token_ids:
        return "with other tokens"
    return "" if received == alone else "with other text or logprobs"
