"""Measures the tokens per second of the front end alone: wire, bookkeeping and detokenisation, without HTTP.

The engine is `octavo.simulate.null_engine`, whose model computes nothing, on a separate core. Rates are
also printed per second of this process's processor time, which is the capacity of one core.

python benchmarks/front_end.py MODEL [--streams 64 256] [--replicas 1 8] [--tokens 500] [--profile]

Only the tokenizer of MODEL is used.
"""

import argparse
import asyncio
import cProfile
import itertools
import pstats
import time

from octavo.checkpoint import open_checkpoint
from octavo.fleet.router import Router
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput
from octavo.frontend.updates import Updates
from octavo.link.folder import EngineSettings
from octavo.membership.local import LocalReplicas
from octavo.protocol import SamplingParams
from octavo.text.tokenizer import Tokenizer


async def measure(
    tokenizer: Tokenizer, streams: int, num_replicas: int, tokens: int, profile: cProfile.Profile | None
) -> None:
    hub = Hub(Router.with_prefixes())
    settings = EngineSettings({"max_running": streams}, log_level="error")
    replicas = LocalReplicas(settings, hub, num_replicas=num_replicas, module="octavo.simulate.null_engine")
    replicas.start()
    try:
        for supervisor in replicas.supervisors:
            await supervisor.wait_until_ready()
        assert replicas.facts is not None
        intake = Intake(tokenizer, RequestLimits(replicas.facts.vocab_size, replicas.facts.max_model_len))
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1)
        prompts = [
            intake.prepare(f"r{number}", PromptTask(f"Story {number}: once", params), now=0.0)
            for number in range(streams)
        ]

        async def read(number: int) -> int:
            updates = Updates()
            hub.submit(InFlightRequest(prompts[number], tokenizer, updates))
            async for update in updates:
                if isinstance(update, RequestOutput):
                    return len(update.token_ids)
            raise AssertionError("the stream ended without a final output")

        started, cpu_started = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        counts = await asyncio.gather(*(read(number) for number in range(streams)))
        if profile is not None:
            profile.disable()
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        assert counts == [tokens] * streams
        count = streams * tokens
        rates = f"{count / wall:>12,.0f} {count / cpu:>18,.0f} {1e6 * cpu / count:>10.1f}"
        print(f"{streams:>7} {num_replicas:>8} {count:>9,} {rates}")
    finally:
        await replicas.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint of the tokenizer")
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=500, help="tokens per stream")
    parser.add_argument("--profile", action="store_true", help="print a profile")
    options = parser.parse_args()
    tokenizer = Tokenizer(open_checkpoint(options.model).text)
    rates = f"{'tokens/s':>12} {'tokens/s per core':>18} {'us/token':>10}"
    print(f"{'streams':>7} {'replicas':>8} {'tokens':>9} {rates}")
    for streams, num_replicas in itertools.product(options.streams, options.replicas):
        profile = cProfile.Profile() if options.profile else None
        asyncio.run(measure(tokenizer, streams, num_replicas, options.tokens, profile))
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
