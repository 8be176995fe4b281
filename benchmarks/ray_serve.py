"""Compares Ray Serve's proxy with the HTTP server of `octavo serve`, in front of the same replica.

pip install 'ray[serve]'
python benchmarks/ray_serve.py MODEL [--engine null|real] [--streams 1 64] [--tokens 300] [--rounds 5]

    octavo:     client -> octavo serve --fleet --------------------------------> agent -> engine
    Ray Serve:  client -> Serve's proxy -> Serve's replica with our application -> agent -> engine

Both sides run the same application, send the same requests in turns, and must answer with the same text.
What differs is who accepts HTTP, and that Serve's proxy receives each event from another process. With
`null`, the engine computes nothing, and a step takes 4 ms. Printed are medians: the time to the first token
of a lone request, and tokens per second. RAY_SERVE_ENABLE_HA_PROXY=1 selects Serve's other proxy: HAProxy,
which connects to an HTTP server in Serve's replica, so that events do not pass through Ray.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from benchmarks.peers.serving import free_port
from benchmarks.ray_data import start_ray
from benchmarks.remote import FRONT_END_KEY, NUM_FIRST_TOKENS, agent_process
from ray import serve
from starlette.types import Receive, Scope, Send

from load.figure import run
from load.wire import COMPLETIONS, Answer, ask
from octavo.checkpoint import open_checkpoint
from octavo.config import ServerOptions
from octavo.fleet.router import Router
from octavo.frontend.hub import Hub
from octavo.frontend.text_model import TextModel
from octavo.membership.addresses import FixedAddresses
from octavo.membership.remote import RemoteReplicas
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.state import ServerState

MAX_ONGOING = 1000  # requests of Serve's replica; the default of 5 would be the limit
READY_POLL_SECONDS = 0.2


class ServedApplication:
    """The application of `octavo serve --fleet`, which starts with the first request."""

    def __init__(self, model: str, address: str, key_path: Path) -> None:
        self._model = model
        self._address = address
        self._key_path = key_path
        self._starting: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        app = await asyncio.shield(self._starting)
        await app(scope, receive, send)

    async def _start(self) -> Any:
        options = ServerOptions()
        addresses = FixedAddresses((self._address,))
        replicas = RemoteReplicas(addresses, self._key_path, lambda: Hub(Router.with_prefixes()))
        replicas.start()
        await replicas.wait_until_ready()
        model = TextModel.of_checkpoint(open_checkpoint(self._model), None)
        state = ServerState(options, model, replicas)
        state.prompter.start()
        return build_app(state, Keys.from_options(options, None))


class HttpSide:
    """One of the two ways to the replica."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.first_tokens: list[float] = []
        self.rates: dict[int, list[float]] = {}
        self.texts: list[str] = []
        self._port = port

    async def until_ready(self) -> None:
        while True:
            try:
                if (await self._ask(0, 1)).status == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(READY_POLL_SECONDS)

    async def measure(self, streams: Sequence[int], num_tokens: int) -> None:
        for number in range(NUM_FIRST_TOKENS):
            self.first_tokens.append((await self._ask(number, 1)).seconds_to_first)
        for count in streams:
            answers = await asyncio.gather(*(self._ask(number, num_tokens) for number in range(count)))
            self.texts += map(text_of, answers)
            seconds = max(answer.done_at or 0.0 for answer in answers) - answers[0].sent_at
            self.rates.setdefault(count, []).append(count * num_tokens / seconds)

    async def _ask(self, number: int, num_tokens: int) -> Answer:
        body = {"prompt": f"Story {number}: once", "seed": number, "stream": True}
        return await ask(self._port, COMPLETIONS, body | {"max_tokens": num_tokens, "ignore_eos": True})


@contextmanager
def octavo_serve(model: str, address: str, key_path: Path) -> Iterator[HttpSide]:
    port = free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port)]
    process = Popen([*command, "--fleet", address, "--fleet-key", key_path], stderr=DEVNULL)
    try:
        yield HttpSide("octavo", port)
    finally:
        process.kill()
        process.wait()


@contextmanager
def ray_serve(model: str, address: str, key_path: Path) -> Iterator[HttpSide]:
    port = free_port()
    start_ray(num_cpus=2)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    mounted = serve.ingress(ServedApplication(model, address, key_path))(type("Application", (), {}))
    deployment = serve.deployment(
        mounted, max_ongoing_requests=MAX_ONGOING, ray_actor_options={"num_cpus": 1}
    )
    serve.run(deployment.bind())
    try:
        yield HttpSide("Ray Serve", port)
    finally:
        ray.shutdown()


def text_of(stream: Answer) -> str:
    events = [event for event in bytes(stream.body).split(b"\n\n") if event.startswith(b"data: {")]
    return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)


async def compare(sides: tuple[HttpSide, HttpSide], options: argparse.Namespace) -> bool:
    for side in sides:
        await side.until_ready()
    for _ in range(options.rounds):
        for side in sides:
            await side.measure(options.streams, options.tokens)
    ours, theirs = sides
    firsts = [1000 * statistics.median(side.first_tokens) for side in sides]
    print(
        f"first token: octavo {firsts[0]:.2f} ms, Ray Serve {firsts[1]:.2f} ms:"
        f" {firsts[1] - firsts[0]:+.2f} ms"
    )
    for count in options.streams:
        rates = [statistics.median(side.rates[count]) for side in sides]
        ratios = [one / other for one, other in zip(theirs.rates[count], ours.rates[count], strict=True)]
        print(
            f"{count:>3} streams: octavo {rates[0]:,.0f} tokens/s, Ray Serve {rates[1]:,.0f} tokens/s:"
            f" {statistics.median(ratios):.3f}x (median of {len(ratios)} pairs)"
        )
    is_same = ours.texts == theirs.texts and all(ours.texts)
    print(f"{len(ours.texts)} answers, {'the same' if is_same else 'DIFFERENT'} on both sides")
    return is_same


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint; with the engine `null`, only its tokenizer is used")
    parser.add_argument("--engine", choices=("null", "real"), default="null")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=300, help="tokens per stream")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a Ray of this program's own, on loopback
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with agent_process(options.model, options.engine, folder) as address:
            key_path = folder / FRONT_END_KEY
            with (
                octavo_serve(options.model, address, key_path) as ours,
                ray_serve(options.model, address, key_path) as theirs,
            ):
                return 0 if run(compare((ours, theirs), options)) else 1


if __name__ == "__main__":
    sys.exit(main())
