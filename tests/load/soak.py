"""Thousands of requests of every kind: memory, files, threads and tasks do not grow."""

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from load.figure import Row, Start, run
from load.requests import chat, completion
from load.wire import CHAT, COMPLETIONS, Connection, Gauges, ask
from server.process import Server

CLIENTS = 16
TOKENS = 4
KIB = 1024
LOOKS = 300  # 0.1 seconds apart


@dataclass(frozen=True)
class Held:
    """Resources of both processes while idle."""

    front_end: int  # bytes of memory
    engine: int
    files: int
    threads: int
    tasks: int


def measure(start: Start, *, warm_up: int, requests: int, parts: int, texts: int) -> list[Row]:
    """Use `texts` different texts. A tokenizer caches up to 10,000, so the warm-up must send as many, or all.

    A leak grows in every part, while other growth occurs in some parts. With few requests, the part with the
    least growth therefore counts.
    """
    server = start("--kv-memory", "8MiB")
    held = run(_soak(server, warm_up, requests // parts, parts, texts))
    size = f"{requests} requests after {warm_up}"
    rows = []
    for name in ("front_end", "engine"):
        memory = [getattr(one, name) for one in held]
        grown = min(after - before for before, after in pairwise(memory)) / (requests // parts)
        least = f" in the least of {parts} parts" if parts > 1 else ""
        figure = f"{grown / KIB:+.2f} KiB a request{least}, {memory[-1] / KIB**2:.0f} MiB in all"
        rows.append(
            Row(f"soak: memory of the {name.replace('_', ' ')}", size, figure, "at most 1 KiB", grown <= KIB)
        )
    for name in ("files", "threads", "tasks"):
        was, now = getattr(held[0], name), getattr(held[-1], name)
        rows.append(Row(f"soak: {name}", size, f"{was} before, {now} after", "no more", now <= was))
    return rows


async def _soak(server: Server, warm_up: int, in_part: int, parts: int, texts: int) -> list[Held]:
    """Return the resources before, between and after the parts."""
    await _send(server, range(warm_up), texts)
    # Grammars are set up by the first one, or while the engine is idle: do it now.
    constrained = completion(0, TOKENS, ignore_eos=False, structured_outputs={"regex": "[a-z]+"})
    assert (await ask(server.port, COMPLETIONS, constrained)).status == 200
    await asyncio.sleep(0.2)  # the last requests are still being released
    held = [await _held(server)]
    for part in range(parts):
        first = warm_up + part * in_part
        await _send(server, range(first, first + in_part), texts)
        held.append(await _settled(server, held[0]))
    return held


async def _settled(server: Server, before: Held) -> Held:
    """Return the resources once they are back to `before`, or after the last attempt if they leak."""
    now = await _held(server)
    for _ in range(LOOKS):
        if now.files <= before.files and now.threads <= before.threads and now.tasks <= before.tasks:
            break
        await asyncio.sleep(0.1)
        now = await _held(server)
    return now


async def _send(server: Server, numbers: range, texts: int) -> None:
    left = iter(numbers)

    async def client() -> None:
        for number in left:
            await _one(server, number, texts)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _one(server: Server, number: int, texts: int) -> None:
    """Send a request that differs from all others, so that whatever the server caches grows with each."""
    port, text = server.port, number % texts
    body = completion(text, TOKENS, cache_salt=str(number), user=str(number), seed=number)
    kind = number % 10
    if kind < 4:
        assert (await ask(port, COMPLETIONS, body | {"stream": kind < 2})).status == 200
    elif kind < 7:
        assert (await ask(port, CHAT, chat(text, TOKENS, stream=kind < 6, seed=number))).status == 200
    elif kind == 7:
        assert (await ask(port, COMPLETIONS, body | {"n": 3, "stop": [str(number)]})).status == 200
    elif kind == 8:
        assert (await ask(port, COMPLETIONS, body | {"model": f"no-{number}"})).status == 404
        assert (await ask(port, f"/nowhere/{number}", body)).status == 404
        assert (await ask(port, COMPLETIONS, body | {"n": 0})).status == 400
    else:
        connection = await Connection.open(port)
        connection.send(COMPLETIONS, body | {"stream": True, "max_tokens": 200})
        await connection.begun()
        connection.disconnect()


async def _held(server: Server) -> Held:
    gauges = await Gauges.open(server.port)
    await gauges.until(lambda v: v("num_requests_running") + v("num_requests_waiting") == 0)
    now = await gauges.look()
    gauges.close()
    engine = server.engine_pid
    assert engine is not None
    pids = (server.process.pid, engine)
    return Held(
        front_end=_status(pids[0], "VmRSS") * KIB,
        engine=_status(pids[1], "VmRSS") * KIB,
        files=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        threads=sum(_status(pid, "Threads") for pid in pids),
        tasks=int(now("asyncio_tasks")),
    )


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)
