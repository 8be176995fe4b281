"""SIGTERM during streams: they finish, new requests are rejected, and no process or file is left."""

import asyncio
from collections import Counter

from load.figure import Row, Start, run
from load.requests import completion
from load.wire import COMPLETIONS, Connection, Lost, ReceivedAnswer, ask
from patience import HANG_SECONDS
from server.process import Server, is_alive

DISTINCT = 8


def measure(start: Start, *, times: int, streams: int, tokens: int) -> list[Row]:
    num_whole, others, exits, left = 0, Counter[str](), [], 0
    for _ in range(times):
        server = start("--kv-memory", "64MiB", "--grace", "60")
        engine = server.engine_pid
        assert engine is not None
        whole, answers = run(_end(server, streams, tokens))
        num_whole += whole
        others += answers
        exits.append(server.process.wait(HANG_SECONDS))
        left += is_alive(engine) + len(list(server.temporary.iterdir()))
    size = f"{times} times under {streams} streams of {tokens} tokens"
    received = ", ".join(f"{count} {answer}" for answer, count in sorted(others.items()))
    is_right = others["503"] >= times and not others.keys() - {"503", "refused"}
    return [
        Row(
            "SIGTERM: streams", size, f"{num_whole} whole", f"{times * streams}", num_whole == times * streams
        ),
        Row("SIGTERM: new requests", size, received, "503, then refused", is_right),
        Row(
            "SIGTERM: what is left",
            size,
            f"exit codes {exits}, {left} processes or files",
            "0, and nothing",
            not any(exits) and left == 0,
        ),
    ]


async def _end(server: Server, streams: int, tokens: int) -> tuple[int, Counter[str]]:
    bodies = [completion(n % DISTINCT, tokens, stream=True) for n in range(streams)]
    alone = [(await ask(server.port, COMPLETIONS, body)).received for body in bodies[:DISTINCT]]
    connections = [await Connection.open(server.port) for _ in bodies]
    for connection, body in zip(connections, bodies, strict=True):
        connection.send(COMPLETIONS, body)
    await asyncio.gather(*(connection.begun() for connection in connections))
    server.terminate()
    asking = asyncio.create_task(_ask_until_the_end(server))
    received = [await _received(connection) for connection in connections]
    whole = sum(one == alone[n % DISTINCT] for n, one in enumerate(received))
    return whole, await asking


async def _received(connection: Connection) -> ReceivedAnswer | None:
    try:
        return (await connection.done()).received
    except Lost:
        return None
    finally:
        connection.disconnect()


async def _ask_until_the_end(server: Server) -> Counter[str]:
    """Send requests until the process ends, and count the outcomes from the first rejection on. Once the last
    stream is done the port is closed, and connections are refused."""
    answers = Counter[str]()
    while server.process.poll() is None:
        try:
            answer = await ask(server.port, COMPLETIONS, completion(0, 1))
            if answer.status == 200 and not answers:
                continue  # the signal has not arrived yet
            answers[str(answer.status) if "retry-after" in answer.headers else "without Retry-After"] += 1
        except OSError:
            answers["refused"] += 1
        await asyncio.sleep(0.02)
    return answers
