"""Clients that leave, in every phase of a request: what they held is free again at once."""

import asyncio
import json
import time
from dataclasses import dataclass

from load.figure import Row, Start, percentile, run
from load.requests import Body, completion
from load.wire import COMPLETIONS, Connection, Gauges
from server.process import Server

RUNNING = 4
ALLOWED = 0.2  # seconds, beside one step
LONG_PROMPT = "word " * 94  # many steps of RUNNING tokens each


@dataclass(frozen=True)
class Phase:
    name: str
    is_streamed: bool


PHASES = [
    Phase(name, is_streamed)
    for name in ("sending", "queued", "prefill", "decode")
    for is_streamed in (True, False)
]


def measure(start: Start, *, rounds: int, clients: int) -> list[Row]:
    """In every phase and round so many clients leave together."""
    server = start("--max-running", str(RUNNING), "--max-step-tokens", str(RUNNING), "--kv-memory", "16MiB")
    seconds, step = run(_measure(server, rounds, clients))
    limit = ALLOWED + step
    rows = []
    for name, took in seconds.items():
        figure = f"median {1e3 * percentile(took, 50):.0f} ms, at most {1e3 * max(took):.0f} ms"
        target = f"one step + {1e3 * ALLOWED:.0f} ms: {1e3 * limit:.0f} ms"
        size = f"{len(took) * clients} disconnects"
        rows.append(Row(f"clients leave: {name}", size, figure, target, max(took) <= limit))
    return rows


async def _measure(server: Server, rounds: int, clients: int) -> tuple[dict[str, list[float]], float]:
    gauges = await Gauges.open(server.port)
    seconds: dict[str, list[float]] = {phase.name: [] for phase in PHASES}
    for number in range(rounds):
        for phase in PHASES:
            seconds[phase.name].append(await _leave(server, gauges, phase, clients, number))
    last = await gauges.look()
    gauges.close()
    return seconds, last("step_seconds_sum") / last("step_seconds_count")


async def _leave(server: Server, gauges: Gauges, phase: Phase, clients: int, number: int) -> float:
    """Seconds until nothing is left of them."""
    before = await gauges.look()
    assert before("kv_cache_usage_perc") == 0
    blockers = await _blockers(server, gauges) if phase.name == "queued" else []
    body = _body(phase, number)
    connections = [await Connection.open(server.port) for _ in range(clients)]
    for each, connection in enumerate(connections):
        if phase.name == "sending":
            _send_half(connection, body)
        else:
            connection.send(COMPLETIONS, body | {"cache_salt": f"{number} {each} {phase}"})
    if phase.name == "queued":
        await gauges.until(lambda value: value("num_requests_waiting") == clients)
    elif phase.name == "prefill":
        await gauges.until(lambda value: value("num_requests_running") > 0)
    elif phase.name == "decode":
        enough = before("generation_tokens_total") + 3 * clients
        await gauges.until(lambda value: value("generation_tokens_total") >= enough)
    for connection in connections:
        connection.leave()
    left_at = time.perf_counter()
    if blockers:
        gone_at = await gauges.until(lambda v: v("num_requests_waiting") == v("num_requests_queued") == 0)
        assert (await gauges.look())("num_requests_running") == RUNNING, "the others were not touched"
        for connection in blockers:
            connection.leave()
        await gauges.until(lambda value: value("num_requests_running") == 0)
        return gone_at - left_at
    gone_at = await gauges.until(
        lambda v: v("kv_cache_usage_perc") == v("num_requests_queued") == v("num_requests_running") == 0
    )
    if phase.name == "prefill":
        assert (await gauges.look())("generation_tokens_total") == before("generation_tokens_total"), (
            "too late"
        )
    return gone_at - left_at


def _body(phase: Phase, number: int) -> Body:
    body = completion(number, 400, stream=phase.is_streamed)
    return body | {"prompt": LONG_PROMPT, "max_tokens": 4} if phase.name == "prefill" else body


def _send_half(connection: Connection, body: Body) -> None:
    content = json.dumps(body).encode()
    connection.send_head(COMPLETIONS, len(content))
    connection.transport.write(content[: len(content) // 2])


async def _blockers(server: Server, gauges: Gauges) -> list[Connection]:
    """They take all places, and begin to answer."""
    blockers = [await Connection.open(server.port) for _ in range(RUNNING)]
    for number, connection in enumerate(blockers):
        connection.send(COMPLETIONS, completion(number, 400, stream=True))
    await asyncio.gather(*(connection.begun() for connection in blockers))
    await gauges.until(lambda value: value("num_requests_running") == RUNNING)
    return blockers
