"""Honest tenants: closed loops over a fixed set of requests, whose answers must equal their solo runs."""

import asyncio
import random
import time

from attacker.answers import Answer, answer_of
from attacker.attack import CHAT, COMPLETIONS, Actor, Attack
from attacker.contract import HONEST
from attacker.findings import Invariant
from attacker.tenants import TenantKey
from attacker.wire import Reply, post
from data.json_types import JsonObject

CONNECTIONS_PER_WEIGHT = 3
SUBJECTS = ("a river", "the moon", "an old clock", "seven bridges", "the harbour", "a paper boat")
KINDS: tuple[JsonObject, ...] = (
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1.0, "top_p": 0.9, "logprobs": 0},
    {"temperature": 0.8, "n": 2},
    {"temperature": 1.2, "stop": [" the", "\n\n"], "ignore_eos": False},
    {"temperature": 1.0, "ignore_eos": False, "structured_outputs": {"regex": "[a-z ,.]{40,160}"}},
    {"temperature": 0, "prompt_logprobs": 1},
    {"temperature": 1.5, "presence_penalty": 0.5, "logit_bias": {"70": 3}},
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


class HonestRequest:
    """One request with its reference answer."""

    def __init__(self, number: int, generator: random.Random) -> None:
        subject = generator.choice(SUBJECTS)
        max_tokens = generator.randrange(16, 48)
        self.name = f"honest request {number}"
        self.path = COMPLETIONS
        self.body: JsonObject = {
            "model": "m",
            "prompt": f"Story {number} is about {subject}. Once upon a time",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "seed": generator.randrange(1 << 31),
            "return_token_ids": True,
            **KINDS[number % len(KINDS)],
        }
        if number % (len(KINDS) + 1) == len(KINDS):
            self._make_chat(subject)
        self.may_stream = "prompt_logprobs" not in self.body
        self.reference: Answer | None = None

    def _make_chat(self, subject: str) -> None:
        self.path = CHAT
        schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
        self.body = {name: self.body[name] for name in ("model", "max_tokens", "seed", "return_token_ids")}
        self.body |= {"messages": [{"role": "user", "content": f"Describe {subject}."}]}
        self.body |= {"response_format": schema, "logprobs": True, "top_logprobs": 1, "temperature": 0.7}

    def data(self, key: str, *, stream: bool) -> bytes:
        return post(self.path, key, self.body | {"stream": stream})

    def difference(self, answer: Answer) -> str | None:
        """Return where an answer differs from the reference, if it does."""
        assert self.reference is not None
        if answer == self.reference:
            return None
        for index, expected in self.reference.choices.items():
            found = answer.choices.get(index)
            for field in ("token_ids", "text", "finish_reasons", "logprobs", "prompt_logprobs"):
                one, other = getattr(expected, field), getattr(found, field, None)
                if one != other:
                    return f"choice {index}: {field} {other!r:.400} instead of {one!r:.400}"
        return f"{len(answer.choices)} choices, {answer.errors} instead of {len(self.reference.choices)}"


class HonestTenant:
    """Counts what one tenant has received."""

    def __init__(self, attack: Attack, tenant: TenantKey, requests: list[HonestRequest]) -> None:
        self.attack = attack
        self.tenant = tenant
        self.requests = requests
        self.num_in_flight = 0
        self.num_equal = 0

    @property
    def num_connections(self) -> int:
        return CONNECTIONS_PER_WEIGHT * self.tenant.weight

    async def loop(self, number: int) -> None:
        actor = Actor(self.attack, f"{self.tenant.name}/{number}", self.tenant)
        while not self.attack.has_ended:
            request = actor.random.choice(self.requests)
            stream = request.may_stream and actor.random.random() < 0.8
            actor.act("honest", request=request.name, stream=stream)
            await self.ask(request, stream=stream)

    async def ask(self, request: HonestRequest, *, stream: bool) -> None:
        """Send a request and check that the answer equals the reference."""
        began, note = time.monotonic(), f"{self.tenant.name}: {request.name}, {stream=}"
        self.num_in_flight += 1
        try:
            async with self.attack.connected(note) as client:
                await client.send(request.data(self.tenant.key, stream=stream))
                await client.replied()
                reply = client.replies[0] if client.replies else Reply()
        except OSError as error:
            self.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, f"{note}: {error!r}")
            await self.attack.pause(0.1)
            return
        finally:
            self.num_in_flight -= 1
        self._check(request, reply, note, began)
        if not reply.is_complete or reply.status != 200:
            await self.attack.pause(0.1)

    def _check(self, request: HonestRequest, reply: Reply, note: str, began: float) -> None:
        attack = self.attack
        if reply.status in (429, 503):
            text = f"{note}: an honest tenant was rejected with {reply.status}: {bytes(reply.body[:300])!r}"
            if not attack.faults.explain(_label(reply), began):
                attack.findings.violate(Invariant.GETS_ITS_SHARE, text)
            return
        attack.check(reply, HONEST, note, began)
        if not reply.is_complete or reply.status != 200:
            return
        answer = answer_of(reply)
        if answer.errors:
            return  # explained by a fault, or a violation already
        difference = request.difference(answer)
        if difference is None:
            self.num_equal += 1
        else:
            attack.findings.violate(Invariant.EQUALS_SOLO_RUN, f"{note}: {difference}")


def _label(reply: Reply) -> str:
    code = reply.json["error"]["code"] if reply.is_complete else ""
    return f"{reply.status} {code}"


async def find_references(attack: Attack, requests: list[HonestRequest]) -> None:
    """Compute the reference answers on the quiet server, one after the other."""
    tenant = attack.tenants.honest[0]
    for request in requests:
        reply = await attack.exchange(request.data(tenant.key, stream=False), HONEST, request.name)
        if reply is None or reply.status != 200:
            raise RuntimeError(f"no reference for {request.name}: {reply}")
        request.reference = answer_of(reply)


def honest_tasks(tenants: list[HonestTenant]) -> list["asyncio.Task[None]"]:
    return [
        asyncio.create_task(tenant.loop(number), name=f"{tenant.tenant.name}/{number}")
        for tenant in tenants
        for number in range(tenant.num_connections)
    ]
