"""Hostile use of connections: framing, headers, keys, pipelining, slow and silent clients, disconnects."""

import contextlib
import json
import time

from attacker.attack import COMPLETIONS, Actor
from attacker.contract import GENERATED, MALFORMED, NO_KEY, OK, REJECTED
from attacker.findings import Invariant
from attacker.wire import Client, get, head, post
from data.json_types import JsonObject

JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
BODY = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
CHUNK = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
MAX_FRAMING = 24 << 20  # bytes: what the server rejects, and what both kernels may buffer
WRONG_KEYS = ("nope", "", "sk-", "# todo", "sk-hostile0-000", "sk-hostile0-00011", "ops", "sk-ops-0001x")


async def endless_framing(actor: Actor) -> None:
    """A body that is mostly framing must be cut off, with or without a key."""
    beginning, rest = actor.random.choice(
        (
            (CHUNK, b"a: b\r\n" * 10_000),
            (b"2;", b"a" * 65536),
            (b"", b"1;" + b"a" * 1000 + b"\r\nx\r\n"),
            (b"2\r\n{}\r\n0\r\na: ", b"b" * 65536),
        )
    )
    key = actor.random.choice((actor.tenant.key, actor.tenant.key, None))
    actor.act("endless framing", beginning=beginning[:20], has_key=key is not None)
    num_sent = 0
    async with actor.attack.connected("endless framing") as client:
        await client.send(head(COMPLETIONS, key, JSON, CHUNKED) + b"\r\n" + beginning)
        while not client.is_lost and num_sent < MAX_FRAMING:
            await client.send(rest)
            num_sent += len(rest)
    if num_sent >= MAX_FRAMING:
        text = f"{num_sent >> 20} MiB of framing after {beginning[:20]!r} were accepted"
        actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)


async def trailers(actor: Actor) -> None:
    """A trailer must not be accepted as a header."""
    key = actor.tenant.key
    authorization = f"Authorization: Bearer {key}\r\n".encode()
    has_key, extra, trailer, expected = actor.random.choice(
        (
            (False, (JSON,), authorization, {NO_KEY}),
            (False, (JSON, "Trailer: authorization"), authorization, {NO_KEY}),
            (True, (), JSON.encode() + b"\r\n", {"415"}),
            (True, (JSON,), b"Host: evil.example\r\nConnection: close\r\n", GENERATED),
            (True, (JSON,), b"Content-Length: 5\r\n", {"400"}),
        )
    )
    actor.act("trailer", trailer=trailer[:30], has_key=has_key)
    data = head(COMPLETIONS, key if has_key else None, *extra, CHUNKED) + b"\r\n" + CHUNK + trailer + b"\r\n"
    # A small body that is rejected early is still within the limits of what the server reads.
    await actor.attack.exchange(data, expected, f"the trailer {trailer[:30]!r}")


async def wrong_keys(actor: Actor) -> None:
    key = actor.random.choice(WRONG_KEYS)
    path = actor.random.choice(("/v1/models", "/metrics", "/octavo/view", "/tokenizer_info", "/openapi.json"))
    scheme = actor.random.choice(("Bearer", "Basic", "bearer", ""))
    actor.act("wrong key", key=key, path=path, scheme=scheme)
    data = head(path, None, f"Authorization: {scheme} {key}", method="GET") + b"\r\n"
    await actor.attack.exchange(data, {NO_KEY}, f"the key {key!r} for {path}")
    await actor.attack.exchange(post(COMPLETIONS, key, {"prompt": "x"}), {NO_KEY}, f"the key {key!r}")
    two = head("/v1/models", actor.tenant.key, f"Authorization: Bearer {actor.tenant.key}", method="GET")
    await actor.attack.exchange(two + b"\r\n", {NO_KEY, "400"}, "two keys")


async def strange_heads(actor: Actor) -> None:
    draw, key = actor.random, actor.tenant.key
    heads: dict[str, bytes] = {
        "large header": head("/v1/models", key, "X-Large: " + "a" * (1 << 20), method="GET"),
        "many headers": head("/v1/models", key, *(f"X-{n}: {n}" for n in range(60_000)), method="GET"),
        "unknown path": head(f"/{draw.randrange(1 << 30)}", key, method="GET"),
        "wrong method": head(COMPLETIONS, key, method="DELETE"),
        "two lengths": head(COMPLETIONS, key, JSON, "Content-Length: 5", CHUNKED),
        "strange length": head(COMPLETIONS, key, JSON, "Content-Length: 0x2"),
        "no JSON": head(COMPLETIONS, key, "Content-Type: text/plain", "Content-Length: 0"),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
        + bytes(draw.randrange(256) for _ in range(64)),
        "compressed": head(COMPLETIONS, key, JSON, "Content-Encoding: gzip", "Content-Length: 0"),
        "path tricks": head("/livez/../v1/models", None, method="GET"),
        "huge body": head(COMPLETIONS, key, JSON, "Content-Length: 99999999999"),
    }
    name = draw.choice(list(heads))
    actor.act("strange head", name=name)
    expected = (MALFORMED | REJECTED) - {OK}
    began = time.monotonic()
    async with actor.attack.connected(f"strange head: {name}") as client:
        await client.send(heads[name] + b"\r\n")
        await client.replied()
        if client.replies:
            actor.attack.check(client.replies[0], expected, f"strange head: {name}", began)


async def pipeline(actor: Actor) -> None:
    """Several requests in one write: each is answered, in order."""
    key, count = actor.tenant.key, actor.random.randrange(2, 30)
    body: JsonObject = {"prompt": "pipelined", "max_tokens": 5, "stream": True, "ignore_eos": True}
    place = actor.random.randrange(count)
    actor.act("pipeline", count=count, place=place)
    requests = [get("/v1/models", key)] * count
    requests[place] = post(COMPLETIONS, key, body)
    began = time.monotonic()
    async with actor.attack.connected("pipeline") as client:
        await client.send(b"".join(requests))
        is_whole = await client.replied(count)
        replies = client.replies
    if not is_whole and all(reply.status < 400 for reply in replies):
        text = f"{len(replies)} of {count} pipelined requests were answered"
        actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)
    for number, reply in enumerate(replies):
        expected = GENERATED if number == place else {OK, "429 rate_limit_exceeded"}
        actor.attack.check(reply, expected, f"pipelined request {number}", began)


async def disconnect_anywhere(actor: Actor) -> None:
    """Send part of a request, or read part of an answer, and disconnect at that byte."""
    draw = actor.random
    body: JsonObject = {
        "prompt": "gone " * draw.randrange(1, 150),
        "max_tokens": draw.randrange(1, 300),
        "stream": draw.random() < 0.7,
        "n": draw.choice((1, 1, 4)),
        "ignore_eos": True,
        "seed": draw.randrange(1 << 20),
    }
    data = post(COMPLETIONS, actor.tenant.key, body)
    sends_all, delay = draw.random() < 0.8, draw.uniform(0, 1.0)
    num_sent = len(data) if sends_all else draw.randrange(1, len(data))
    num_read, reset = draw.choice((0, 1, 200, 2000, 20_000)), draw.random() < 0.5
    actor.act("disconnect", sent=num_sent, of=len(data), read=num_read, reset=reset, n=body["n"])
    async with actor.attack.connected("disconnect") as client:
        await client.send(data[:num_sent])
        if sends_all and num_read:
            await client.until(lambda one: one.num_received >= num_read or one.num_complete > 0)
        else:
            await actor.attack.pause(delay)
        client.disconnect(reset=reset)


async def slow_reader(actor: Actor) -> None:
    """Stop reading for a while, then read to the end: the answer is complete unless it was cut off."""
    draw = actor.random
    seconds, reads_on = draw.uniform(0.2, 3.0), draw.random() < 0.7
    body: JsonObject = {
        "prompt": "slow",
        "max_tokens": 200,
        "stream": True,
        "ignore_eos": True,
        "logprobs": 5,
    }
    actor.act("slow reader", seconds=round(seconds, 2), reads_on=reads_on)
    began = time.monotonic()
    async with actor.attack.connected("slow reader", buffers_little=True) as client:
        await client.send(post(COMPLETIONS, actor.tenant.key, body))
        await client.until(lambda one: one.num_received > 0)
        client.stop_reading()
        await actor.attack.pause(seconds)
        if reads_on:
            client.resume_reading()
            if await client.replied():
                actor.attack.check(client.replies[0], GENERATED, "slow reader", began)


async def unread_answers(actor: Actor) -> None:
    draw = actor.random
    count, seconds = draw.randrange(1, 8), draw.uniform(0.1, 2.0)
    body: JsonObject = {"prompt": "a b c d " * draw.randrange(1000, 16_000), "return_token_strs": True}
    actor.act("unread", count=count, seconds=round(seconds, 2))
    async with contextlib.AsyncExitStack() as connections:
        for _ in range(count):
            opening = actor.attack.connected("unread answer", buffers_little=True)
            client = await connections.enter_async_context(opening)
            client.stop_reading()
            await client.send(post("/tokenize", actor.tenant.key, body))
        await actor.attack.pause(seconds)


async def silent_connections(actor: Actor) -> None:
    draw = actor.random
    count, seconds = draw.randrange(10, 60), draw.uniform(0.2, 3.0)
    beginnings = (
        b"",
        b"GET /",
        head(COMPLETIONS, None) + b"X-a: ",
        post(COMPLETIONS, actor.tenant.key, {})[:-1],
    )
    actor.act("silent", count=count, seconds=round(seconds, 2))
    async with contextlib.AsyncExitStack() as connections:
        for number in range(count):
            client = await connections.enter_async_context(actor.attack.connected("silent"))
            if data := beginnings[number % len(beginnings)]:
                await client.send(data)
        await actor.attack.pause(seconds)


async def send_slowly(actor: Actor) -> None:
    """Send a request one piece at a time, and check its answer."""
    data = post(COMPLETIONS, actor.tenant.key, {"prompt": "bytes", "max_tokens": 2})
    cuts = sorted(actor.random.randrange(1, len(data)) for _ in range(6))
    actor.act("slow request", cuts=cuts)
    began = time.monotonic()
    async with actor.attack.connected("slow request") as client:
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            await client.send(data[start:end])
            await actor.attack.pause(0.02)
        await client.replied()
        _check_first(actor, client, began)


def _check_first(actor: Actor, client: Client, began: float) -> None:
    if client.replies:
        actor.attack.check(client.replies[0], GENERATED, "slow request", began)
    else:
        text = "a request that was sent in pieces got no reply"
        actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)
