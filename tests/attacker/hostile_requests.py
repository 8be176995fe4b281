"""Hostile use of the API: floods, priorities, malformed bodies, long prompts, grammars, secrets of others."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable

from attacker.api_forms import RESPONSES
from attacker.attack import COMPLETIONS, Actor
from attacker.contract import (
    CONSTRAINED,
    GENERATED,
    HURRIED,
    MALFORMED,
    NO_KEY,
    OK,
    OPERATOR_ONLY,
    TOO_LONG,
)
from attacker.findings import Invariant
from attacker.tenants import MAX_STREAMS, REQUESTS_PER_MINUTE
from attacker.wire import get, post
from attacks.test_grammars import SLOW, large
from data.json_types import Json, JsonObject
from server.hostile import Mutator

MAX_AT_ONCE = 16
NUM_URGENT = 8
PRIORITIES = (-(1 << 31), -1, 0, 5, (1 << 31) - 1)
MEBIBYTE = 1 << 20
TOO_LONG_GRAMMAR = "400 context_length_exceeded"  # the prompt contains the grammar of a tool
# The check of a slow grammar may be inconclusive on an overloaded machine, which is a 503.
SLOW_CHECK = CONSTRAINED | {"503 grammar_not_checked"}
GRAMMAR_REPLIES = {
    "slow regex": SLOW_CHECK,
    "slow masks": SLOW_CHECK,
    "large schema": SLOW_CHECK,
    "ambiguous": SLOW_CHECK,
    "choices": HURRIED,
    "malformed": CONSTRAINED - {OK},
    "nothing matches": CONSTRAINED - {OK},
}


async def flood(actor: Actor) -> None:
    """Many requests at once, most of them with the most urgent priority."""
    draw = actor.random
    bodies = [_flooding(actor) for _ in range(draw.randrange(2, MAX_AT_ONCE))]
    actor.act("flood", count=len(bodies), priorities=sorted({body["priority"] for body in bodies}))
    await _ask_all(actor, bodies, GENERATED, "flood")


async def urge(actor: Actor) -> None:
    """Requests with the most urgent priority. Sent in a loop, they would stop all other tenants."""
    bodies = [_flooding(actor) | {"priority": PRIORITIES[0], "n": 1} for _ in range(NUM_URGENT)]
    actor.act("urge", count=len(bodies))
    await _ask_all(actor, bodies, GENERATED, "urgent")


async def hurry(actor: Actor) -> None:
    """Requests whose timeout passes in the queue, in prefill or in decode."""
    draw = actor.random
    timeouts = [round(10 ** draw.uniform(-3, 0.3), 4) for _ in range(draw.randrange(1, 6))]
    actor.act("hurry", timeouts=timeouts)
    bodies = [_flooding(actor) | {"timeout": timeout, "max_tokens": 300} for timeout in timeouts]
    await _ask_all(actor, bodies, HURRIED, "hurry")


async def ask_for_logprobs(actor: Actor) -> None:
    draw = actor.random
    ids = [draw.randrange(250) for _ in range(draw.randrange(20, 300))]
    body: JsonObject = {"prompt": ids, "max_tokens": 2, "prompt_logprobs": 20, "n": draw.choice((1, 2, 4))}
    actor.act("logprobs", prompt=len(ids), n=body["n"])
    await actor.attack.ask(actor.tenant, body, GENERATED, "logprobs")


async def stop_early(actor: Actor) -> None:
    """Stop strings and several choices, which end at different times."""
    stop = actor.random.sample([" a", " the", "\n", ".", ",", " of"], 3)
    body = _flooding(actor) | {"stop": stop, "n": actor.random.randrange(2, 9), "max_tokens": 60}
    actor.act("stop", stop=stop, n=body["n"])
    await actor.attack.ask(actor.tenant, body, GENERATED, "stop strings")


async def malformed_bodies(actor: Actor) -> None:
    mutator = Mutator(actor.random.randrange(1 << 31))
    bodies = [mutator.next() for _ in range(8)]
    actor.act("malformed", paths=[path for path, _ in bodies])
    for path, body in bodies:
        note = f"malformed body {body[:400]!r}"
        await actor.attack.ask(actor.tenant, body, MALFORMED, note, path)


async def nested_bodies(actor: Actor) -> None:
    depth = actor.random.choice((50, 200, 400, 990, 2000, 100_000))
    nest = ("[" * depth + "]" * depth) if actor.random.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth
    field = actor.random.choice(("zzz", "logit_bias", "stop", "structured_outputs", "prompt", "metadata"))
    actor.act("nested", depth=depth, field=field)
    body = f'{{"model":"m","max_tokens":1,"prompt":"x","{field}":{nest}}}'.encode()
    await actor.attack.ask(actor.tenant, body, MALFORMED, f"{field} nested {depth} times")


async def long_prompts(actor: Actor) -> None:
    """Prompts of megabytes. Half of the clients disconnect without waiting for the rejection."""
    draw = actor.random
    size, waits = int(draw.uniform(0.1, 3.5) * MEBIBYTE), draw.random() < 0.5
    kind, delay = draw.choice(("words", "letters", "ids")), draw.uniform(0, 0.4)
    actor.act("long prompt", size=size, kind=kind, waits=waits)
    prompt: Json = "word " * (size // 5) if kind == "words" else "a" * size
    if kind == "ids":
        prompt = [1] * (size // 4)
    body = {"prompt": prompt, "max_tokens": 1}
    if waits:
        await actor.attack.ask(actor.tenant, body, TOO_LONG, f"a prompt of {size} bytes")
        return
    async with actor.attack.connected("a long prompt that is abandoned") as client:
        await client.send(post(COMPLETIONS, actor.tenant.key, body))
        await actor.attack.pause(delay)
        client.disconnect(reset=draw.random() < 0.5)


async def hostile_grammars(actor: Actor) -> None:
    draw = actor.random
    number = draw.randrange(1 << 30)
    grammars: dict[str, JsonObject] = {
        "slow regex": {"regex": f"(a|b)*a(a|b){{{300 + number % 1000}}}c{number}"},
        "slow masks": {"grammar": SLOW + f"\n// {number}"},
        "large schema": large(number, 1)["structured_outputs"],
        "malformed": {"grammar": f"start: {'(' * (number % 50)}a{number}"},
        "ambiguous": {"grammar": 'start: a\na: a a a | b\nb: b b | "x" | "y" | '},
        "nothing matches": {"grammar": "start: start"},
        "choices": {"choice": [f"{number}-{index}" for index in range(200)]},
    }
    names = [draw.choice(list(grammars)) for _ in range(draw.randrange(1, 6))]
    actor.act("grammars", grammar=number, kinds=names)
    requests = []
    for index, name in enumerate(names):
        body = {"prompt": "x", "max_tokens": 12, "timeout": 20, "structured_outputs": grammars[name]}
        path, expected = COMPLETIONS, GRAMMAR_REPLIES[name]
        if draw.random() < 0.3 and "grammar" in grammars[name]:
            body, path = _as_input(grammars[name]["grammar"]), RESPONSES
            expected |= {TOO_LONG_GRAMMAR}
        body["stream"] = index % 2 == 1
        requests.append(actor.attack.ask(actor.tenant, body, expected, f"{name} at {path}", path))
    await asyncio.gather(*requests)


def _as_input(lark: Json) -> JsonObject:
    """Return a request for a call of a tool whose input has the grammar."""
    form = {"type": "grammar", "syntax": "lark", "definition": lark}
    tool = {"type": "custom", "name": "write", "format": form}
    limits = {"max_output_tokens": 40, "timeout": 20}
    return {"model": "m", "input": "x", "tools": [tool], "tool_choice": "required"} | limits


async def guess_prefixes(actor: Actor) -> None:
    """Send a prompt as one tenant and then as another: the second must not find it in the prefix cache."""
    attack = actor.attack
    number, name = actor.random.randrange(1 << 30), attack.tenants.hostile[0].name
    salts = actor.random.choice((("", ""), ("a", "a"), ("", f"{name}\0")))
    actor.act("guess prefixes", prompt=number, salts=salts)
    words = f"secret {number} " * 6
    for tenant, salt in zip(attack.tenants.hostile, salts, strict=True):
        body = {"prompt": words, "max_tokens": 1, "cache_salt": salt, "temperature": 0}
        reply = await attack.ask(tenant, body, GENERATED, "prefix of another tenant")
        if reply is None or reply.status != 200:
            return
        num_cached = (reply.json["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        if num_cached and tenant is attack.tenants.hostile[1]:
            text = f"{num_cached} tokens of another tenant's prompt were found in the prefix cache"
            attack.findings.violate(Invariant.EQUALS_SOLO_RUN, text)


async def exceed_streams(actor: Actor) -> None:
    """Ask for one more stream than the limited tenant may have."""
    attack, limited = actor.attack, actor.attack.tenants.limited
    actor.act("exceed streams")
    body: JsonObject = {"prompt": "x", "max_tokens": 800, "ignore_eos": True, "stream": True}
    async with contextlib.AsyncExitStack() as connections:
        streams = []
        for _ in range(MAX_STREAMS):
            client = await connections.enter_async_context(attack.connected("a stream of the limited tenant"))
            await client.send(post(COMPLETIONS, limited.key, body))
            await client.until(lambda one: one.num_content > 0)
            streams.append(client)
        reply = await attack.ask(limited, {"prompt": "x", "max_tokens": 1}, GENERATED, "beyond max_streams")
        # After one more request, the ends of streams that had ended before the reply have arrived too.
        await attack.exchange(get("/v1/models", actor.tenant.key), [OK], "a request of another tenant")
        have_run = all(
            one.replies and one.replies[0].status == 200 and not one.num_complete and not one.is_lost
            for one in streams
        )
    if have_run and reply is not None and reply.status == 200:
        text = f"{MAX_STREAMS + 1} requests of a tenant with max_streams={MAX_STREAMS} ran at once"
        attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)


async def exceed_requests(actor: Actor) -> None:
    """Send one more request than the metered tenant may send in a minute."""
    attack, began = actor.attack, time.monotonic()
    actor.act("exceed requests")
    body: JsonObject = {"prompt": "x", "max_tokens": 1}
    num_accepted = 0
    for _ in range(REQUESTS_PER_MINUTE + 1):
        reply = await attack.ask(attack.tenants.metered, body, GENERATED, "beyond requests_per_minute")
        num_accepted += reply is not None and reply.status == 200
    if num_accepted > REQUESTS_PER_MINUTE and time.monotonic() - began < 60:
        text = f"{num_accepted} requests with requests_per_minute={REQUESTS_PER_MINUTE} were accepted"
        attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)


async def forbidden_views(actor: Actor) -> None:
    """Ask for what only the operator may see, and use a key that has expired."""
    attack, tenant = actor.attack, actor.tenant
    path = actor.random.choice(("/octavo/view", "/octavo/view?interval=0.1&count=1"))
    actor.act("forbidden", path=path)
    await attack.exchange(get(path, tenant.key), [OPERATOR_ONLY], f"{tenant.name}: the view of the engine")
    await attack.exchange(get("/v1/models", attack.tenants.expired.key), [NO_KEY], "an expired key")
    reply = await attack.exchange(get("/metrics", tenant.key), [OK], f"{tenant.name}: metrics")
    others = [one.name for one in attack.tenants.all if one is not tenant]
    if reply is not None and any(f'"{name}"'.encode() in reply.body for name in others):
        attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, f"{tenant.name} sees metrics of other tenants")


def _flooding(actor: Actor) -> JsonObject:
    draw = actor.random
    return {
        "prompt": f"flood {draw.randrange(1 << 20)} " + "and more " * draw.randrange(40),
        "max_tokens": draw.randrange(1, 120),
        "ignore_eos": True,
        "priority": draw.choice((PRIORITIES[0], *PRIORITIES)),
        "stream": draw.random() < 0.6,
        "n": draw.choice((1, 1, 1, 1, 2, 8)),
        "temperature": draw.choice((0, 1.0, 2.0)),
        "seed": draw.randrange(1 << 31),
        "octavo": draw.random() < 0.2,
    }


async def _ask_all(actor: Actor, bodies: Iterable[JsonObject], expected: frozenset[str], note: str) -> None:
    attack = actor.attack
    requests = (
        attack.ask(actor.tenant, body, expected, f"{note} {json.dumps(body)[:300]}") for body in bodies
    )
    await asyncio.gather(*requests)
