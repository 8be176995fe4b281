"""Hostile use of the APIs of other clients: disconnects in streams, and stored responses of other tenants."""

import asyncio
import json

from attacker.api_forms import COUNT_TOKENS, MESSAGES, RESPONSES, events_of_stream
from attacker.attack import Actor
from attacker.contract import GENERATED, INVALID, NO_KEY, OK
from attacker.findings import Invariant
from attacker.tenants import TenantKey
from attacker.wire import Reply, get, head, post
from data.json_types import JsonObject

NOT_STORED = "404 response_not_found"
NOT_CONTINUED = "400 previous_response_not_found"
PATHS = (MESSAGES, RESPONSES, "/api/chat", "/api/generate")
NOT_COUNTED = ("max_tokens", "stream", "seed")
PAIRS: JsonObject = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" start "b" | "c"'}
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 9}},
    "required": ["place"],
    "additionalProperties": False,
}


async def other_apis(actor: Actor) -> None:
    """A request in every API at once, streamed or not, with or without a tool; some clients disconnect."""
    draw, attack, tenant = actor.random, actor.attack, actor.tenant
    bodies = {path: _drawn_body(actor, path) for path in PATHS}
    abandoned = {path: draw.randrange(3000) for path in PATHS if draw.random() < 0.3}  # bytes received before
    actor.act("other apis", streamed=[path for path in PATHS if bodies[path]["stream"]], abandoned=abandoned)
    await asyncio.gather(
        *(
            _abandon(actor, path, body, abandoned[path])
            if path in abandoned
            else attack.ask(tenant, body, GENERATED, f"{path} {json.dumps(body)[:300]}", path)
            for path, body in bodies.items()
        )
    )
    counted = {name: value for name, value in bodies[MESSAGES].items() if name not in NOT_COUNTED}
    await attack.ask(tenant, counted, GENERATED, "count tokens", COUNT_TOKENS)
    path = draw.choice(PATHS)
    await attack.ask(attack.tenants.expired, bodies[path], {NO_KEY}, f"an expired key at {path}", path)


async def _abandon(actor: Actor, path: str, body: JsonObject, num_bytes: int) -> None:
    """Disconnect after some bytes of the body of the response, or at once if it is not streamed."""
    async with actor.attack.connected(f"a request to {path} that is abandoned") as client:
        await client.send(post(path, actor.tenant.key, body))
        if body["stream"]:
            await client.until(lambda one: one.num_content > num_bytes or one.num_complete > 0)
        client.disconnect(reset=num_bytes % 2 == 0)


async def stored_responses(actor: Actor) -> None:
    """Read, continue, refer to and delete the stored response of another tenant. The owner still has it."""
    draw, attack = actor.random, actor.attack
    owner = draw.choice([one for one in attack.tenants.hostile if one is not actor.tenant])
    secret, stream = f"the secret {draw.randrange(1 << 60):x}", draw.random() < 0.5
    actor.act("stored responses", owner=owner.name, stream=stream)
    body = _body(RESPONSES, secret, 4, stream=stream) | {"store": True}
    reply = await attack.ask(owner, body, GENERATED, "a stored response", RESPONSES)
    stored = None if reply is None or reply.status != 200 else _final(reply)
    if stored is None:
        return
    await _spy(actor, stored["id"], secret)
    whole, item = f"{RESPONSES}/{stored['id']}", stored["output"][0]["id"]
    reply = await attack.exchange(get(whole, owner.key), [OK], "the owner reads a response")
    if reply is not None and reply.status == 200 and reply.json["output"] != stored["output"]:
        attack.findings.violate(
            Invariant.EQUALS_SOLO_RUN, f"the response {stored['id']} was stored otherwise"
        )
    reply = await attack.exchange(get(f"{whole}/input_items", owner.key), [OK], "the owner reads its input")
    if reply is not None and reply.status == 200 and secret.encode() not in reply.body:
        attack.findings.violate(
            Invariant.EQUALS_SOLO_RUN, f"the input of {stored['id']} was stored otherwise"
        )
    again = {"previous_response_id": stored["id"], "input": [{"type": "item_reference", "id": item}]}
    await attack.ask(owner, body | again, GENERATED, "the owner continues", RESPONSES)
    await attack.exchange(_delete(whole, owner), [OK], "the owner deletes a response")
    await attack.exchange(get(whole, owner.key), [NOT_STORED], "the owner reads what it has deleted")


async def _spy(actor: Actor, response_id: str, secret: str) -> None:
    """Try everything with a response of another tenant."""
    attack, spy, whole = actor.attack, actor.tenant, f"{RESPONSES}/{response_id}"
    asked = {"model": "m", "max_output_tokens": 1}
    continued = asked | {"previous_response_id": response_id, "input": "Repeat it."}
    referred = asked | {"input": [{"type": "item_reference", "id": f"msg_{response_id.partition('_')[2]}"}]}
    attempts = {
        "reads": (get(whole, spy.key), NOT_STORED),
        "reads the input of": (get(f"{whole}/input_items?limit=100", spy.key), NOT_STORED),
        "cancels": (post(f"{whole}/cancel", spy.key, {}), NOT_STORED),
        "deletes": (_delete(whole, spy), NOT_STORED),
        "continues": (post(RESPONSES, spy.key, continued), NOT_CONTINUED),
        "refers to": (post(RESPONSES, spy.key, referred), INVALID),
        "reads without a key": (get(whole, None), NO_KEY),
    }
    for what, (data, expected) in attempts.items():
        # A tenant with many requests in flight may be refused before the body is read.
        busy = GENERATED - {OK} if what in ("continues", "refers to") else frozenset()
        reply = await attack.exchange(
            data, {expected} | busy, f"{spy.name} {what} a response of another tenant"
        )
        if reply is not None and secret.encode() in reply.body:
            attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, f"{spy.name} {what} the secret of another")


def _final(reply: Reply) -> JsonObject | None:
    """Return the response of a reply; None if a fault ended it."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        whole: JsonObject = reply.json
        return whole
    final = events_of_stream(reply)[-1]
    return final["response"] if final["type"] in ("response.completed", "response.incomplete") else None


def _delete(path: str, tenant: TenantKey) -> bytes:
    return head(path, tenant.key, method="DELETE") + b"\r\n"


def _drawn_body(actor: Actor, path: str) -> JsonObject:
    draw = actor.random
    text, num_tokens, stream = (
        f"Tell {draw.randrange(1 << 20)} stories.",
        draw.randrange(1, 80),
        draw.random(),
    )
    body = _body(path, text, num_tokens, stream=stream < 0.7)
    return body | (_tools(path, is_required=draw.random() < 0.5) if draw.random() < 0.4 else {})


def _body(path: str, text: str, num_tokens: int, *, stream: bool) -> JsonObject:
    body: JsonObject = {"model": "m", "stream": stream}
    messages = [{"role": "user", "content": text}]
    if path == MESSAGES:
        return body | {"messages": messages, "system": "Be brief.", "max_tokens": num_tokens, "seed": 7}
    if path == RESPONSES:
        return body | {"input": text, "instructions": "Be brief.", "max_output_tokens": num_tokens}
    asked = {"messages": messages} if path == "/api/chat" else {"prompt": text}
    return body | asked | {"options": {"num_predict": num_tokens}}


def _tools(path: str, *, is_required: bool) -> JsonObject:
    """Return the fields for one tool, in the form of the API."""
    tool: JsonObject = {"name": "weather", "description": "the weather at a place"}
    if path == MESSAGES:
        choice = {"tool_choice": {"type": "any" if is_required else "auto"}}
        return {"tools": [tool | {"input_schema": PARAMETERS}], **choice}
    tool |= {"parameters": PARAMETERS}
    if path == RESPONSES:
        write: JsonObject = {"type": "custom", "name": "write", "format": PAIRS}
        offered = [tool | {"type": "function"}, write]
        return {"tools": offered, "tool_choice": "required" if is_required else "auto"}
    return {"tools": [{"type": "function", "function": tool}]} if path == "/api/chat" else {}
