"""A well-behaved client during an attack, and the checks on its answers and on the server.

The neighbour streams the same request repeatedly, on a new connection each time. During any attack it must
get the same answer as alone, without being skipped in a step. Meanwhile `/livez` is probed, and the peak
memory of the front end is compared with the memory before.
"""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data.json_types import JsonObject
from patience import HANG_SECONDS
from server.process import Server

KEY = "key-of-the-neighbour"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}
MEBIBYTE = 1 << 20
MAX_GROWTH = 200 * MEBIBYTE
BETWEEN_PROBES = 0.05  # seconds

Connect = Callable[[], http.client.HTTPConnection]


@dataclass(frozen=True)
class Answer:
    status: int
    text: str  # of the answer or the error
    passed_over: int = 0  # steps without a token for this request


@dataclass
class Seen:
    """Observations during one attack. Each list is written by one thread."""

    answers: list[Answer] = field(default_factory=list)
    probes: list[int | str] = field(default_factory=list)
    growth: int = 0  # bytes of peak memory of the front end


def plain_http(server: Server) -> Connect:
    return lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_SECONDS)


def ask(connect: Connect, max_tokens: int = 300, has_begun: threading.Event | None = None) -> Answer:
    """Stream one answer. `has_begun` is set at the first token, or when none will follow."""
    body: JsonObject = {
        "prompt": "The neighbour",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": 5,
        "stream": True,
        "octavo": True,
    }
    with contextlib.closing(connect()) as connection:
        headers = {"content-type": "application/json", **AUTHORIZATION}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        content = response.readline().decode()
        while content.endswith(("\n\n", ": ping\n")):
            content += response.readline().decode()
        if has_begun is not None:
            has_begun.set()
        content += response.read().decode()
    if response.status != 200:
        return Answer(response.status, content)
    events = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    if not events or events.pop() != "[DONE]" or any('"error"' in event for event in events):
        return Answer(response.status, "not whole: " + content[-500:])
    read = [json.loads(event) for event in events]
    text = "".join(choice["text"] for event in read for choice in event["choices"])
    (explained,) = next(event["octavo"] for event in read if event.get("octavo"))["requests"]
    return Answer(response.status, text, explained["choices"][0]["steps_passed_over"])


def probe(connect: Connect, path: str = "/livez") -> int:
    with contextlib.closing(connect()) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status


@contextlib.contextmanager
def beside(
    server: Server, *, connect: Connect | None = None, max_tokens: int = 300, once: bool = False
) -> Iterator[Seen]:
    """Run the block while a neighbour streams, and check that the neighbour is not affected. Its first stream
    has begun when the block starts. With `once`, it sends only that request."""
    connect = connect or plain_http(server)
    alone = ask(connect, max_tokens)
    assert alone.status == 200, alone
    seen, has_begun, is_over = Seen(), threading.Event(), threading.Event()
    pid = server.process.pid
    before = memory(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the peak

    def stream() -> None:
        while not seen.answers or not (once or is_over.is_set()):
            seen.answers.append(_outcome(lambda: ask(connect, max_tokens, has_begun)))
            has_begun.set()

    def watch() -> None:
        while not is_over.is_set():
            try:
                seen.probes.append(probe(connect))
            except (OSError, http.client.HTTPException) as error:
                seen.probes.append(repr(error))
            time.sleep(BETWEEN_PROBES)

    threads = [threading.Thread(target=work, daemon=True) for work in (stream, watch)]
    with contextlib.ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join, HANG_SECONDS)
        ending.callback(is_over.set)
        has_begun.wait(HANG_SECONDS)
        yield seen
    assert not any(thread.is_alive() for thread in threads), server.log[-2000:]
    seen.growth = memory(pid, "VmHWM") - before
    assert set(seen.probes) == {200}, [probe for probe in seen.probes if probe != 200][:3]
    assert seen.answers == [Answer(200, alone.text)] * len(seen.answers)
    assert seen.growth < MAX_GROWTH, f"{seen.growth / MEBIBYTE:.0f} MiB"


def memory(pid: int, name: str) -> int:
    """Return the memory of a process in bytes: `VmRSS`, or the peak `VmHWM`."""
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{name}:")[1].split()[0]) << 10


def num_descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + HANG_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _outcome(ask_once: Callable[[], Answer]) -> Answer:
    """Return the answer, or the error as an answer with status 0."""
    try:
        return ask_once()
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, repr(error))
