"""What a well-behaved client feels of an attack: time to the first token, time between two tokens, probes.

python benchmarks/attacked.py MODEL [NAME ...] [--seconds 20] [--short]

MODEL is a real one: beside the steps of a tiny one, everything takes long. NAMEs are of ATTACKS; none means
all. Before each attack the same is measured beside 16 well-behaved streams. Attackers have the lowest
priority of the system, so what is measured is the server, and not who has more processors. Memory is looked
at during an attack and again a while after. tests/attacks has the same attacks in the size of CI, where
steps, tokens and bytes are counted, and nothing is timed.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attacks.neighbour import MEBIBYTE, memory
from attacks.test_grammars import large, slow
from data.json_types import JsonObject
from load.figure import Row, percentile, table
from server.process import Server

NUM_STREAMS = 16
NUM_ATTACKERS = 4
MOST_BETWEEN, MOST_TO_FIRST = 2.0, 3.0  # times what it is beside well-behaved streams
MOST_GROWTH, MOST_LEFT = 200 * MEBIBYTE, 40 * MEBIBYTE

Attack = Callable[[int, int], None]  # on a port, by attacker number so-and-so; until it is killed


def ask(port: int, body: JsonObject, path: str = "/v1/completions", seconds: float = 60) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)) as connection:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        connection.getresponse().read()


def send(port: int, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(data)
    return connection


def request(body: JsonObject, path: str = "/v1/completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


# -- attacks -----------------------------------------------------------------------------------------------


def well_behaved(port: int, number: int) -> None:
    ask(port, {"prompt": f"Story {number}", "max_tokens": 200, "ignore_eos": True, "stream": True})


def endless_trailers(port: int, number: int) -> None:
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with send(port, chunked) as connection:
        while True:
            connection.sendall(b"a: b\r\n" * 10_000)


def long_prompts_and_leave(port: int, number: int) -> None:
    with send(port, request({"prompt": "word " * (MEBIBYTE * 3 // 4), "max_tokens": 1})):
        time.sleep(0.05)


def lists_in_lists(port: int, number: int) -> None:
    ask(port, {"prompt": "x", "unknown": [[]] * MEBIBYTE})


def unread_answers(port: int, number: int) -> None:
    kept = [send(port, request({"prompt": "a b " * (200 << 10)}, "/tokenize")) for _ in range(8)]
    time.sleep(2)
    for connection in kept:
        connection.close()


def silent_connections(port: int, number: int) -> None:
    with contextlib.ExitStack() as kept:
        for _ in range(200):
            kept.enter_context(send(port, b""))
        time.sleep(1)


def large_schemas(port: int, number: int) -> None:
    ask(port, large(int.from_bytes(os.urandom(4)), 2))


def slow_grammars(port: int, number: int) -> None:
    ask(port, slow(int.from_bytes(os.urandom(4)), 60) | {"n": 4})


ATTACKS: tuple[Attack, ...] = (
    endless_trailers,
    long_prompts_and_leave,
    lists_in_lists,
    unread_answers,
    silent_connections,
    large_schemas,
    slow_grammars,
)


def _attack(attack: Attack, port: int, number: int) -> None:
    os.nice(19)
    while True:
        try:
            attack(port, number)
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)


@contextlib.contextmanager
def under(attack: Attack, port: int, num_attackers: int) -> Iterator[None]:
    attackers = [
        multiprocessing.Process(target=_attack, args=(attack, port, number), daemon=True)
        for number in range(num_attackers)
    ]
    for attacker in attackers:
        attacker.start()
    time.sleep(1)
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()


# -- what others feel --------------------------------------------------------------------------------------


@dataclass
class Felt:
    """In seconds; and bytes of the front end, at its peak."""

    to_first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    wrong_probes: int = 0
    peak: int = 0


def feel(server: Server, seconds: float) -> Felt:
    felt = Felt()
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak is counted from here
    until = time.monotonic() + seconds
    prober = threading.Thread(target=_probe, args=(server.port, felt, until))
    prober.start()
    while time.monotonic() < until:
        _stream(server.port, felt)
    prober.join()
    felt.peak = memory(server.process.pid, "VmHWM")
    return felt


def _stream(port: int, felt: Felt) -> None:
    body = {"prompt": "The neighbour", "max_tokens": 64, "ignore_eos": True, "stream": True}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        last = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        times = felt.to_first
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                now = time.monotonic()
                times.append(now - last)
                times, last = felt.between, now


def _probe(port: int, felt: Felt, until: float) -> None:
    while time.monotonic() < until:
        started = time.monotonic()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            try:
                connection.request("GET", "/livez")
                felt.wrong_probes += connection.getresponse().status != 200
            except (OSError, http.client.HTTPException):
                felt.wrong_probes += 1
        felt.probes.append(time.monotonic() - started)
        time.sleep(0.05)


def compare(server: Server, attack: Attack, seconds: float, rest: float) -> list[Row]:
    before = memory(server.process.pid, "VmRSS")
    with under(well_behaved, server.port, NUM_STREAMS):
        usual = feel(server, seconds)
    with under(attack, server.port, NUM_ATTACKERS):
        felt = feel(server, seconds)
    time.sleep(rest)
    left = memory(server.process.pid, "VmRSS") - before
    name = attack.__name__.replace("_", " ")
    rows = []
    for what, was, now, most in (
        ("between tokens", usual.between, felt.between, MOST_BETWEEN),
        ("first token", usual.to_first, felt.to_first, MOST_TO_FIRST),
    ):
        times = percentile(now, 99) / percentile(was, 99)
        figure = f"p99 {percentile(now, 99) * 1e3:.0f} ms, {times:.2f}x"
        rows.append(Row(f"{name}: {what}", f"{len(now)}", figure, f"at most {most:.0f}x", times <= most))
    figure = f"{felt.wrong_probes} wrong, p99 {percentile(felt.probes, 99) * 1e3:.0f} ms"
    rows.append(Row(f"{name}: /livez", f"{len(felt.probes)}", figure, "never wrong", not felt.wrong_probes))
    growth = felt.peak - before
    figure = f"+{growth / MEBIBYTE:.0f} MiB, then {left / MEBIBYTE:+.0f} MiB"
    is_met = growth <= MOST_GROWTH and left <= MOST_LEFT
    rows.append(Row(f"{name}: memory", f"{rest:.0f} s later", figure, "at most +200, +40 MiB", is_met))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [attack.__name__ for attack in ATTACKS]
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--short", action="store_true", help="memory is looked at again after 5 s, not 60")
    options = parser.parse_args()
    is_met = True
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), options.model, "--dtype", "bfloat16", records=False).wait_until_ready()
        try:
            feel(server, 3)
            for attack in ATTACKS:
                if not options.names or attack.__name__ in options.names:
                    rows = compare(server, attack, options.seconds, 5 if options.short else 60)
                    print(table(rows) + "\n", flush=True)
                    is_met = is_met and all(row.is_met for row in rows)
        finally:
            server.stop()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
