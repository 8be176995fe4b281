"""Compares a replica behind an agent (TCP with CURVE, on loopback) with one on this machine (Unix socket).

python benchmarks/remote.py MODEL [--engine null|real] [--streams 1 64] [--tokens 300] [--rounds 5]

The same requests go to both in turns, through the same front-end code. With `null`, the engine computes
nothing, and a step takes STEP_SECONDS: what remains is the cost of the link. Printed are medians: the time to
the first token of a lone request, and tokens per second.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import uvloop
import zmq

from octavo.checkpoint import open_checkpoint
from octavo.fleet.router import Router
from octavo.frontend.engine_process import ENGINE_MODULE
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.supervisor import EngineSupervisor
from octavo.frontend.updates import Updates
from octavo.link.fleet_key import new_fleet_keys
from octavo.link.folder import EngineSettings
from octavo.membership.addresses import FixedAddresses
from octavo.membership.local import LocalReplicas
from octavo.membership.membership import Membership
from octavo.membership.remote import RemoteReplicas
from octavo.protocol import SamplingParams
from octavo.replica.gate import Gate
from octavo.replica.relay import Relay
from octavo.text.tokenizer import Tokenizer

STEP_SECONDS = 0.004
NUM_FIRST_TOKENS = 50
REPLICA_KEY, FRONT_END_KEY = "replica.key", "front-end.key"
MODULES = {"null": "octavo.simulate.null_engine", "real": ENGINE_MODULE}


def settings_of(model: str, engine: str) -> EngineSettings:
    options = {"model": model, "kv_memory": 1 << 30} if engine == "real" else {"step_seconds": STEP_SECONDS}
    return EngineSettings(options, log_level="error")


async def run_agent(model: str, engine: str, key_path: Path) -> None:
    """Run an agent until the parent process ends it, and print its address."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    relay = Relay("agent", context, Gate(context, key_path), lambda: None)
    supervisor = EngineSupervisor(settings_of(model, engine), relay, name="agent", module=MODULES[engine])
    endpoint = relay.open("127.0.0.1:0", supervisor)
    print(f"127.0.0.1:{endpoint.rpartition(':')[2]}", flush=True)
    supervisor.start()
    await asyncio.gather(relay.run(), relay.keep_beating())


class Side:
    """One of the two ways to a replica."""

    def __init__(self, name: str, replicas: Membership, tokenizer: Tokenizer) -> None:
        self.name = name
        self.first_tokens: list[float] = []
        self.rates: dict[int, list[float]] = {}
        self._replicas = replicas
        self._tokenizer = tokenizer
        self._count = 0

    async def ask(self, num_tokens: int) -> float:
        """Return the seconds to the first token."""
        facts = self._replicas.facts
        assert facts is not None
        self._count += 1
        intake = Intake(self._tokenizer, RequestLimits(facts.vocab_size, facts.max_model_len))
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=1)
        prepared = intake.prepare(
            f"{self.name}{self._count}",
            PromptTask(f"Story {self._count}: once", params),
            now=time.monotonic(),
        )
        updates, began, first = Updates(), time.perf_counter(), 0.0
        self._replicas.hub.submit(InFlightRequest(prepared, self._tokenizer, updates))
        async for update in updates:
            first = first or time.perf_counter() - began
            if isinstance(update, RequestOutput):
                assert len(update.token_ids) == num_tokens
                return first
            assert isinstance(update, StreamDelta)
        raise AssertionError("the stream ended without a final output")

    async def measure(self, streams: Sequence[int], num_tokens: int) -> None:
        for _ in range(NUM_FIRST_TOKENS):
            self.first_tokens.append(await self.ask(1))
        for number in streams:
            began = time.perf_counter()
            await asyncio.gather(*(self.ask(num_tokens) for _ in range(number)))
            rate = number * num_tokens / (time.perf_counter() - began)
            self.rates.setdefault(number, []).append(rate)


@contextmanager
def agent_process(model: str, engine: str, folder: Path) -> Iterator[str]:
    """Run an agent with an engine, and yield its address. `folder` gets the keys of the fleet."""
    for path, key in zip((folder / REPLICA_KEY, folder / FRONT_END_KEY), new_fleet_keys(), strict=True):
        path.touch(0o600)
        path.write_text(key.text("of a benchmark"))
    command = [sys.executable, __file__, model, "--engine", engine, "--agent", str(folder / REPLICA_KEY)]
    process = Popen(command, stdout=PIPE, stderr=DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def both_sides(model: str, engine: str) -> AsyncIterator[tuple[Side, Side]]:
    tokenizer = Tokenizer(open_checkpoint(model).text)
    with tempfile.TemporaryDirectory() as name, agent_process(model, engine, Path(name)) as address:
        hub = Hub(Router.with_prefixes())
        local = LocalReplicas(settings_of(model, engine), hub, module=MODULES[engine])
        local.start()
        key_path = Path(name) / FRONT_END_KEY
        remote = RemoteReplicas(FixedAddresses((address,)), key_path, lambda: Hub(Router.with_prefixes()))
        remote.start()
        try:
            await local.wait_until_ready()
            await remote.wait_until_ready()
            yield Side("local", local, tokenizer), Side("remote", remote, tokenizer)
        finally:
            await remote.close()
            await local.close()


async def compare(options: argparse.Namespace) -> None:
    async with both_sides(options.model, options.engine) as (local, remote):
        for side in (local, remote):
            await side.ask(4)
        for _ in range(options.rounds):
            for side in (local, remote):
                await side.measure(options.streams, options.tokens)
        firsts = [1000 * statistics.median(side.first_tokens) for side in (local, remote)]
        print(
            f"first token: local {firsts[0]:.2f} ms, remote {firsts[1]:.2f} ms:"
            f" {firsts[1] - firsts[0]:+.2f} ms"
        )
        for number in options.streams:
            rates = [statistics.median(side.rates[number]) for side in (local, remote)]
            ratios = [ours / its for its, ours in zip(local.rates[number], remote.rates[number], strict=True)]
            print(
                f"{number:>3} streams: local {rates[0]:,.0f} tokens/s, remote {rates[1]:,.0f} tokens/s:"
                f" {statistics.median(ratios):.3f}x (median of {len(ratios)} pairs)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint; with the engine `null`, only its tokenizer is used")
    parser.add_argument("--engine", choices=MODULES, default="null")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=300, help="tokens per stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--agent", type=Path, help=argparse.SUPPRESS)  # the process behind the link
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in servers and agents
        if options.agent is not None:
            runner.run(run_agent(options.model, options.engine, options.agent))
        else:
            runner.run(compare(options))


if __name__ == "__main__":
    main()
