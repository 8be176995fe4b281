"""Measures how attacks affect a well-behaved client: time to first token, time between tokens, probes.

python benchmarks/attacked.py MODEL [NAME ...] [--seconds 20] [--short]

Use a real MODEL: compared with the steps of a tiny one, everything else would be slow. NAMEs are those of
ATTACKS; without a name, all attacks run. Before each attack, the same is measured next to 16 well-behaved
streams. Attackers run at the lowest priority of the system, so that the server is measured and not the
competition for processors. Memory is measured during an attack and again some time later. tests/attacks has
the same attacks in the size of CI, where steps, tokens and bytes are counted and nothing is timed.
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
MAX_BETWEEN, MAX_TO_FIRST = 2.0, 3.0  # times the value next to well-behaved streams
MAX_GROWTH, MAX_LEFT = 200 * MEBIBYTE, 40 * MEBIBYTE

Attack = Callable[[int, int], None]  # called with the port and the attacker's number until it is killed


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


def long_prompts_then_disconnect(port: int, number: int) -> None:
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
    long_prompts_then_disconnect,
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


# -- impact on others --------------------------------------------------------------------------------------


@dataclass
class Impact:
    """Latencies in seconds, and the peak memory of the front end in bytes."""

    to_first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    failed_probes: int = 0
    peak: int = 0


def measure_impact(server: Server, seconds: float) -> Impact:
    impact = Impact()
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets the peak memory
    until = time.monotonic() + seconds
    prober = threading.Thread(target=_probe, args=(server.port, impact, until))
    prober.start()
    while time.monotonic() < until:
        _stream(server.port, impact)
    prober.join()
    impact.peak = memory(server.process.pid, "VmHWM")
    return impact


def _stream(port: int, impact: Impact) -> None:
    body = {"prompt": "The neighbour", "max_tokens": 64, "ignore_eos": True, "stream": True}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        last = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        times = impact.to_first
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                now = time.monotonic()
                times.append(now - last)
                times, last = impact.between, now


def _probe(port: int, impact: Impact, until: float) -> None:
    while time.monotonic() < until:
        started = time.monotonic()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            try:
                connection.request("GET", "/livez")
                impact.failed_probes += connection.getresponse().status != 200
            except (OSError, http.client.HTTPException):
                impact.failed_probes += 1
        impact.probes.append(time.monotonic() - started)
        time.sleep(0.05)


def compare(server: Server, attack: Attack, seconds: float, rest: float) -> list[Row]:
    before = memory(server.process.pid, "VmRSS")
    with under(well_behaved, server.port, NUM_STREAMS):
        usual = measure_impact(server, seconds)
    with under(attack, server.port, NUM_ATTACKERS):
        impact = measure_impact(server, seconds)
    time.sleep(rest)
    left = memory(server.process.pid, "VmRSS") - before
    name = attack.__name__.replace("_", " ")
    rows = []
    for what, baseline, now, limit in (
        ("between tokens", usual.between, impact.between, MAX_BETWEEN),
        ("first token", usual.to_first, impact.to_first, MAX_TO_FIRST),
    ):
        times = percentile(now, 99) / percentile(baseline, 99)
        figure = f"p99 {percentile(now, 99) * 1e3:.0f} ms, {times:.2f}x"
        rows.append(Row(f"{name}: {what}", f"{len(now)}", figure, f"at most {limit:.0f}x", times <= limit))
    figure = f"{impact.failed_probes} failed, p99 {percentile(impact.probes, 99) * 1e3:.0f} ms"
    rows.append(
        Row(f"{name}: /livez", f"{len(impact.probes)}", figure, "none failed", not impact.failed_probes)
    )
    growth = impact.peak - before
    figure = f"+{growth / MEBIBYTE:.0f} MiB, then {left / MEBIBYTE:+.0f} MiB"
    is_met = growth <= MAX_GROWTH and left <= MAX_LEFT
    rows.append(Row(f"{name}: memory", f"{rest:.0f} s later", figure, "at most +200, +40 MiB", is_met))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [attack.__name__ for attack in ATTACKS]
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--short", action="store_true", help="measure memory again after 5 s instead of 60 s")
    options = parser.parse_args()
    is_met = True
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), options.model, "--dtype", "bfloat16", records=False).wait_until_ready()
        try:
            measure_impact(server, 3)
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
