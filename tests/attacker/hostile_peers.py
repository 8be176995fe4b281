"""Hostile use of the port on which a replica accepts front ends: peers without a key of the fleet."""

import asyncio
import contextlib
from typing import Any

import zmq
import zmq.asyncio

from attacker.attack import Actor
from attacker.findings import Invariant
from octavo.link.agent_messages import AGENT, Join, RestartEngine, encode_agent
from octavo.link.fleet_key import new_fleet_keys
from octavo.link.versions import PROTOCOL_VERSION

NUM_AT_ONCE = 4
ANSWER_MILLISECONDS = 1000  # in which an allowed front end has its answer, unless the machine is very slow
# What a listener of ZeroMQ sends before it knows anything about its peer: its greeting, which has 64 bytes,
# and the error of a handshake.
MAX_RECEIVED = 64 + 32


def greeting(mechanism: bytes) -> bytes:
    """Return the greeting of ZMTP 3.1 for a security mechanism, as a client."""
    return b"\xff" + b"\0" * 8 + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" * 32


def _openings(actor: Actor) -> tuple[bytes, ...]:
    noise = actor.random.randbytes(actor.random.randrange(1, 4096))
    return (
        b"",  # silent
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        noise,
        greeting(b"NULL") + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER",
        greeting(b"PLAIN") + b"\x04\x0c\x05HELLO\x01a\x01b" + noise,
        greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\0".ljust(202, b"\0"),
        greeting(b"CURVE") + b"\x04\xff" + noise,
        greeting(b"CURVE") + b"\x06" + b"\x7f" + b"\xff" * 7,  # a frame of 2^63 bytes
    )


async def knock(actor: Actor) -> None:
    """Connect to a replica without a key. It must close the connection, and must send nothing of its own."""
    agent = actor.random.choice(actor.attack.server.agents)
    openings = actor.random.sample(_openings(actor), NUM_AT_ONCE)
    actor.act("knock", agent=agent.name, openings=[one[:40] for one in openings])
    received = await asyncio.gather(*(_send(actor, agent.host_and_port, one) for one in openings))
    for opening, answer in zip(openings, received, strict=True):
        if len(answer) > MAX_RECEIVED:
            text = f"a replica answered {answer[:200]!r} to a peer without a key that sent {opening[:80]!r}"
            actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)


async def impersonate(actor: Actor) -> None:
    """Join a replica as a front end with a key that it does not allow. It must not answer."""
    agent = actor.random.choice(actor.attack.server.agents)
    actor.act("impersonate", agent=agent.name)
    stranger, _ = new_fleet_keys()
    context: Any = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    stranger.protect_connection(socket, agent.public)
    socket.connect(f"tcp://{agent.address}")
    try:
        for message in (Join("stranger", PROTOCOL_VERSION), RestartEngine()):
            await socket.send_multipart((AGENT, encode_agent(message)))
        if await socket.poll(ANSWER_MILLISECONDS):
            text = f"a replica answered a front end with an unknown key: {await socket.recv_multipart()}"
            actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)
    finally:
        context.destroy(linger=0)


async def _send(actor: Actor, address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes, and return what arrives until the replica closes the connection."""
    writer = None
    received = b""
    try:
        with contextlib.suppress(ConnectionError):  # the agent may be gone, and may reset the connection
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            async with asyncio.timeout(actor.attack.settings.patience):
                while (part := await reader.read(1 << 16)) and len(received) <= MAX_RECEIVED:
                    received += part
    except TimeoutError:
        text = f"a replica does not close the connection of a peer without a key that sent {data[:80]!r}"
        actor.attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)
    finally:
        if writer is not None:
            writer.transport.abort()
    return received
