"""Ten API keys on one server: a flood of one takes nothing from the others, and weights and limits are exact.

Shares are counted in tokens, so they do not depend on how fast the machine is.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from load.figure import SLOW_ENGINE, Row, Start, allow_files, run
from load.requests import Body
from load.wire import COMPLETIONS, Connection, Gauges
from server.process import Server

NUM_EQUAL = 10
TOKENS = 32  # of one answer
CONNECTIONS = 8  # of each key that does not flood: enough for its share, also while it sends the next request
MAX_GAP = 1.0  # seconds between two looks. After more, this process was paused, and its clients sent nothing
ATTEMPTS = 5
RETRY_SECONDS = 0.2  # of a flood after a rejection, far sooner than Retry-After allows
REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE = 300, 6000
OPERATOR = "sk-operator"
FLAGS = (*SLOW_ENGINE, "--max-running", "16", "--kv-memory", "64MiB")


def secret(name: str) -> str:
    return f"sk-of-{name}"


EQUALS = tuple(f"equal{number}" for number in range(NUM_EQUAL))
KEY_FILE = "".join(
    f"{name} {secret(name)} {options}\n"
    for name, options in (
        *((name, "") for name in EQUALS),
        ("heavy", "weight=3"),
        ("single", ""),
        ("limited-requests", f"requests_per_minute={REQUESTS_PER_MINUTE}"),
        ("limited-tokens", f"tokens_per_minute={TOKENS_PER_MINUTE}"),
    )
)


def measure(start: Start, *, flood: int, singles: int, tokens: int, limited_seconds: float) -> list[Row]:
    """Measure shares over `tokens` generated tokens each. `flood` is the number of connections of one key."""
    allow_files(4 * flood + 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.txt"
        path.write_text(f"ops {OPERATOR} role=operator\n{KEY_FILE}")
        server = start(*FLAGS, "--api-key-file", str(path))
        rows = run(_measure_shares(server, flood, tokens))
        rows.append(run(_measure_singles(server, flood, singles)))
        if limited_seconds:
            rows += run(_measure_limits(server, limited_seconds))
        return rows


async def _measure_shares(server: Server, flood: int, tokens: int) -> list[Row]:
    equals = dict.fromkeys(EQUALS, CONNECTIONS)
    among_equals = await _tokens_of(server, equals, tokens)
    beside_flood = await _tokens_of(server, equals | {EQUALS[0]: flood}, tokens)
    ratio = min(
        beside_flood[name] / sum(beside_flood.values()) / (among_equals[name] / sum(among_equals.values()))
        for name in EQUALS[1:]
    )
    together = sum(beside_flood[name] for name in EQUALS[1:]) / sum(beside_flood.values())
    floods = list((await _tokens_of(server, dict.fromkeys(EQUALS, flood // 4), tokens)).values())
    index = sum(floods) ** 2 / (len(floods) * sum(value * value for value in floods))
    weighted = await _tokens_of(server, {"heavy": flood // 2, EQUALS[0]: flood // 2}, tokens)
    threefold = weighted["heavy"] / weighted[EQUALS[0]]
    size = f"{tokens:,} tokens each"
    return [
        Row(
            "fairness: nine keys beside a flood",
            f"{flood} connections of the tenth, {size}",
            f"at least {100 * ratio:.1f} % of their tokens among ten equals; together {together:.1%} of all",
            "at least 90 %",
            ratio >= 0.9,
            # Few tokens are few requests of one key, but many of nine. In order of arrival, they would get
            # 72 of 172 requests; their share is 0.9.
            is_tolerable=together >= 0.6,
        ),
        Row(
            "fairness: ten equal floods",
            f"{flood // 4} connections each, {size}",
            f"Jain's index {index:.4f}",
            "at least 0.95",
            index >= 0.95,
            is_tolerable=index >= 0.9,
        ),
        Row(
            "fairness: weight 3 beside weight 1",
            f"{flood // 2} connections each, {size}",
            f"{threefold:.3f} times the tokens",
            "3, within 5 %",
            abs(threefold / 3 - 1) <= 0.05,
            is_tolerable=1.5 <= threefold <= 6,
        ),
    ]


async def _measure_singles(server: Server, flood: int, singles: int) -> Row:
    statuses = []
    seconds = []
    async with _clients(server, {EQUALS[0]: flood}):
        gauges = await Gauges.open(server.port, OPERATOR)
        await gauges.until(lambda value: value("num_requests_waiting") > 0)
        connection = await _connection(server, "single")
        for number in range(singles):
            connection.send(COMPLETIONS, _request(number) | {"stream": True})
            answer = await connection.done()
            statuses.append(answer.status)
            if answer.status == 200:
                seconds.append(answer.seconds_to_first)
            await asyncio.sleep(1.0)
        connection.disconnect()
        gauges.close()
    rejected = sum(status != 200 for status in statuses)
    return Row(
        "fairness: a request a second beside a flood",
        f"{singles} requests, {flood} connections of another key",
        f"{rejected} rejected; first token after {max(seconds, default=0.0):.2f} s at most",
        "none",
        rejected == 0,
    )


async def _measure_limits(server: Server, seconds: float) -> list[Row]:
    """Flood for some minutes with keys that have limits."""
    return list(
        await asyncio.gather(
            _measure_limit(server, seconds, "requests", REQUESTS_PER_MINUTE),
            _measure_limit(server, seconds, "tokens", TOKENS_PER_MINUTE),
        )
    )


async def _measure_limit(server: Server, seconds: float, unit: str, limit: int) -> Row:
    used: list[tuple[float, int]] = []
    async with _clients(server, {f"limited-{unit}": 8}, used):
        await asyncio.sleep(seconds)
    if unit == "requests":
        used = [(at, 1) for at, _ in used]
    end = used[0][0] + 60 * (seconds // 60)
    total = sum(amount for at, amount in used if at < end)
    # A whole window at once, and then one more every minute.
    expected = limit * (seconds // 60)
    return Row(
        f"fairness: {unit} a minute",
        f"limit {limit:,}, {seconds:g} s",
        f"{total:,} of {expected:,.0f}",
        "within 1 %",
        abs(total / expected - 1) <= 0.01,
        is_tolerable=True,
    )


async def _tokens_of(server: Server, connections: Mapping[str, int], tokens: int) -> dict[str, int]:
    """Return how many tokens each key gets while the server generates `tokens`.

    Before that is a warm-up, in which every key gets some.
    """
    gauges = await Gauges.open(server.port, OPERATOR)
    async with _clients(server, connections):
        for _ in range(ATTEMPTS):
            before, _gap = await _usage_after(gauges, tokens // 4, connections)
            after, gap = await _usage_after(gauges, tokens)
            if gap <= MAX_GAP:
                break
    gauges.close()
    return {name: after[name] - before[name] for name in connections}


async def _usage_after(
    gauges: Gauges, tokens: int, names: Iterable[str] = ()
) -> tuple[dict[str, int], float]:
    """Wait until `tokens` more tokens are generated, some of them for each of `names`.

    Return those of each key since the start, and the longest time between two looks.
    """
    begin, looked, gap = await _usage(gauges), time.monotonic(), 0.0
    while True:
        usage, now = await _usage(gauges), time.monotonic()
        gap, looked = max(gap, now - looked), now
        is_enough = sum(usage.values()) >= sum(begin.values()) + tokens
        if is_enough and all(usage.get(name, 0) > begin.get(name, 0) for name in names):
            return usage, gap
        await asyncio.sleep(0.05)


async def _usage(gauges: Gauges) -> dict[str, int]:
    found = re.findall(
        r'^octavo:key_generation_tokens_total{.*key="([^"]+)".*} (\S+)$', await gauges.text(), re.M
    )
    return {name: int(float(value)) for name, value in found}


@asynccontextmanager
async def _clients(
    server: Server, connections: Mapping[str, int], used: list[tuple[float, int]] | None = None
) -> AsyncIterator[None]:
    """Keep each connection of each key busy. Appends the time and tokens of each answer to `used`.

    All are open before the first request is sent, and the keys take turns in sending. Otherwise the first key
    gets all slots before the others have sent anything, and then nothing until they have caught up.
    """
    over = asyncio.Event()
    opened = [
        (await _connection(server, name), number)
        for number in range(max(connections.values()))
        for name, count in connections.items()
        if number < count
    ]
    tasks = [asyncio.create_task(_client(connection, number, over, used)) for connection, number in opened]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def _client(
    connection: Connection, number: int, over: asyncio.Event, used: list[tuple[float, int]] | None
) -> None:
    while not over.is_set():
        connection.send(COMPLETIONS, _request(number))
        answer = await connection.done()
        if answer.status == 200:
            if used is not None:
                used.append((time.monotonic(), answer.json["usage"]["total_tokens"]))
        else:
            assert answer.status == 429, bytes(answer.body)
            await asyncio.sleep(RETRY_SECONDS)
    connection.disconnect()


def _request(number: int) -> Body:
    """Return a request whose cost is its answer: shares include prompts, unless they are cached."""
    return {"prompt": "A", "max_tokens": TOKENS, "ignore_eos": True, "seed": number}


async def _connection(server: Server, name: str) -> Connection:
    connection = await Connection.open(server.port)
    connection.key = secret(name)
    return connection
