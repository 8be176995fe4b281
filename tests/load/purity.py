"""A request has one answer, alone or under load: the same bytes of text, the same logprobs."""

import asyncio

from load.figure import Row, Start, run
from load.requests import Body, chat, completion
from load.wire import CHAT, COMPLETIONS, ReceivedAnswer, ask
from server.process import Server


def measure(start: Start, *, requests: int, load: int, tokens: int) -> list[Row]:
    server = start("--kv-memory", "16MiB")
    equal = run(_compare(server, requests, load, tokens))
    return [
        Row(
            "purity over HTTP",
            f"{requests} requests, alone and {load} at once",
            f"{equal} equal in text and logprobs",
            "all",
            equal == requests,
        )
    ]


async def _compare(server: Server, requests: int, load: int, tokens: int) -> int:
    """Under load, the requests are sent in another order, and half of them as streams."""
    alone = [await _received(server, n, tokens, is_streamed=False) for n in range(requests)]
    places = asyncio.Semaphore(load)

    async def loaded(number: int) -> bool:
        async with places:
            received = await _received(server, number, tokens, is_streamed=number % 4 < 2)
        return received == alone[number]

    return sum(await asyncio.gather(*(loaded(n) for n in reversed(range(requests)))))


async def _received(server: Server, number: int, tokens: int, *, is_streamed: bool) -> ReceivedAnswer:
    is_chat = number % 3 == 0
    make, path = (chat, CHAT) if is_chat else (completion, COMPLETIONS)
    # Lengths differ, so that concurrent requests never run in lockstep.
    body: Body = make(number, tokens + number % 7, stream=is_streamed)
    answer = await ask(server.port, path, body)
    assert answer.status == 200, answer.body
    return answer.received
