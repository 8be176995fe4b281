"""Clients that disconnect in every phase of a request: their resources are released at once."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from load.figure import SLOW_ENGINE, Row, Start, percentile, run
from load.requests import Body, completion
from load.wire import COMPLETIONS, Connection, Gauges
from server.process import Server

RUNNING = 4
FLAGS = (*SLOW_ENGINE, "--max-running", str(RUNNING), "--max-step-tokens", str(RUNNING))
ALLOWED = 0.2  # seconds, in addition to one step
MAX_ATTEMPTS = 10
DECODED = 400  # tokens of an answer that is not cut off
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
    """In every phase and round, `clients` clients disconnect together."""
    server = start(*FLAGS, "--kv-memory", "16MiB")
    seconds, step = run(_measure(server, rounds, clients))
    limit = ALLOWED + step
    rows = []
    for name, took in seconds.items():
        figure = f"median {1e3 * percentile(took, 50):.0f} ms, at most {1e3 * max(took):.0f} ms"
        target = f"one step + {1e3 * ALLOWED:.0f} ms: {1e3 * limit:.0f} ms"
        size = f"{len(took) * clients} disconnects"
        # `_disconnect` has already waited until the requests were aborted and everything was released.
        is_met = max(took) <= limit
        rows.append(Row(f"clients leave: {name}", size, figure, target, is_met, is_tolerable=True))
    return rows


async def _measure(server: Server, rounds: int, clients: int) -> tuple[dict[str, list[float]], float]:
    gauges = await Gauges.open(server.port)
    seconds: dict[str, list[float]] = {phase.name: [] for phase in PHASES}
    for number in range(rounds):
        for phase in PHASES:
            for attempt in range(MAX_ATTEMPTS):
                took = await _disconnect(server, gauges, phase, clients, f"{phase} {number} {attempt}")
                if took is not None:
                    break
            assert took is not None, f"no client disconnected in time in {phase}"
            seconds[phase.name].append(took)
    last = await gauges.look()
    gauges.close()
    return seconds, last("step_seconds_sum") / last("step_seconds_count")


async def _disconnect(server: Server, gauges: Gauges, phase: Phase, clients: int, name: str) -> float | None:
    """Return seconds until everything is released; None if the clients were too late for that phase."""
    before = await gauges.look()
    assert before("kv_cache_usage_perc") == 0
    blockers = await _blockers(server) if phase.name == "queued" else []
    connections = [await Connection.open(server.port) for _ in range(clients)]
    for number, connection in enumerate(connections):
        if phase.name == "sending":
            _send_half(connection, _body(phase, number))
        else:
            connection.send(COMPLETIONS, _body(phase, number) | {"cache_salt": f"{name} {number}"})
    tokens = before("generation_tokens_total")
    if phase.name == "queued":
        await gauges.until(
            lambda v: v("num_requests_waiting") == clients or v("num_requests_running") < RUNNING
        )
    elif phase.name == "prefill":
        await gauges.until(lambda v: v("num_requests_running") > 0 or v("generation_tokens_total") > tokens)
    elif phase.name == "decode":
        await gauges.until(lambda v: v("generation_tokens_total") >= tokens + 3 * clients)
    disconnected_at = time.perf_counter()
    for connection in connections:
        connection.disconnect()
    if blockers:
        released_at = await gauges.until(lambda v: v("num_requests_waiting") == v("num_requests_queued") == 0)
        is_in_time = (await gauges.look())("num_requests_running") == RUNNING
        for connection in blockers:
            connection.disconnect()
        await gauges.until(_is_empty)
    else:
        released_at = await gauges.until(_is_empty)
        after = await gauges.look()
        # A request that is not aborted runs to the end, one step per token, and releases its blocks then.
        steps = after("step_seconds_count") - before("step_seconds_count")
        is_in_time = steps < DECODED if phase.name == "decode" else after("generation_tokens_total") == tokens
    return released_at - disconnected_at if is_in_time else None


def _is_empty(value: Callable[[str], float]) -> bool:
    return value("kv_cache_usage_perc") == value("num_requests_queued") == value("num_requests_running") == 0


def _body(phase: Phase, number: int) -> Body:
    body = completion(number, DECODED, stream=phase.is_streamed)
    return body | {"prompt": LONG_PROMPT, "max_tokens": 30} if phase.name == "prefill" else body


def _send_half(connection: Connection, body: Body) -> None:
    content = json.dumps(body).encode()
    connection.send_head(COMPLETIONS, len(content))
    connection.transport.write(content[: len(content) // 2])


async def _blockers(server: Server) -> list[Connection]:
    """Start streams that occupy all slots."""
    blockers = [await Connection.open(server.port) for _ in range(RUNNING)]
    for number, connection in enumerate(blockers):
        connection.send(COMPLETIONS, completion(number, 400, stream=True))
    await asyncio.gather(*(connection.begun() for connection in blockers))
    return blockers
