"""Invariant 6: a server opens no connections, and the front end of a fleet only those to its replicas.

Read from the tables of the operating system, because libzmq connects without any call that Python can see.
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from attacker.attack import Attack
from attacker.findings import Invariant

WATCH_SECONDS = 0.5
CONNECTING, CONNECTED = "02", "01"  # SYN_SENT and ESTABLISHED in the tables of Linux

Address = tuple[str, int]


class Outgoing(NamedTuple):
    pid: int
    protocol: str  # tcp, tcp6, udp or udp6
    remote: Address


def outgoing_connections(pids: Sequence[int], listening: Collection[Address]) -> Iterator[Outgoing]:
    """Yield the connections of processes that they have not accepted at one of the addresses. A UDP socket
    counts as a connection."""
    # A new child has the sockets of its parent until it runs its program. They belong to the first in `pids`.
    owners = {inode: pid for pid in reversed(pids) for inode in _sockets(pid)}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(FileNotFoundError):  # there is no IPv6
            for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
                fields = line.split()
                is_udp = protocol.startswith("udp")
                is_open = is_udp or fields[3] in (CONNECTING, CONNECTED)
                if is_open and fields[9] in owners and (is_udp or _address(fields[1]) not in listening):
                    yield Outgoing(owners[fields[9]], protocol, _address(fields[2]))


async def watch_connections(attack: Attack) -> None:
    """Look at the connections of all processes of the server, again and again."""
    server = attack.server
    replicas = [agent.host_and_port for agent in server.agents]
    listening = [("127.0.0.1", server.port), *replicas]
    while not attack.has_ended:
        pids = [server.process.pid, *(process.pid for process in server.processes)]
        for found in outgoing_connections(pids, listening):
            attack.findings.counts["outgoing connections seen"] += 1
            is_front_end = found.pid == server.process.pid
            if not (is_front_end and found.protocol.startswith("tcp") and found.remote in replicas):
                attack.findings.violate(Invariant.NO_OTHER_CONNECTION, f"a process connects: {found}")
        await attack.pause(WATCH_SECONDS)


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets of a process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                if found := re.match(r"socket:\[(\d+)\]", os.readlink(entry)):
                    yield found[1]


def _address(written: str) -> Address:
    """Return an address of a table, which has each group of four bytes in the order of this machine."""
    host, _, port = written.partition(":")
    groups = [struct.pack("=I", int(host[start : start + 8], 16)) for start in range(0, len(host), 8)]
    packed = b"".join(groups)
    mapped = b"\0" * 10 + b"\xff\xff"  # an IPv4 address in the table of IPv6
    if packed.startswith(mapped):
        packed = packed.removeprefix(mapped)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
