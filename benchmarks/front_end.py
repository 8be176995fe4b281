"""Measures the tokens per second of the front end alone: wire, bookkeeping and detokenisation, without HTTP.

The engine is `octavo.simulate.null_engine`, whose model computes nothing, on a separate core. Rates are
also printed per second of this process's processor time, which is the capacity of one core.

python benchmarks/front_end.py MODEL [--streams 64 256] [--tokens 500] [--profile]

Only the tokenizer of MODEL is used.
"""

import argparse
import asyncio
import cProfile
import pstats
import time

from octavo.checkpoint import open_checkpoint
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput
from octavo.frontend.supervisor import EngineSupervisor
from octavo.frontend.updates import Updates
from octavo.link.folder import EngineSettings
from octavo.protocol import SamplingParams
from octavo.text.tokenizer import Tokenizer


async def measure(tokenizer: Tokenizer, streams: int, tokens: int, profile: cProfile.Profile | None) -> None:
    hub = Hub()
    settings = EngineSettings({"max_running": streams}, log_level="error")
    supervisor = EngineSupervisor(settings, hub, module="octavo.simulate.null_engine")
    supervisor.start()
    try:
        await supervisor.wait_until_ready()
        assert supervisor.facts is not None
        intake = Intake(tokenizer, RequestLimits(supervisor.facts.vocab_size, supervisor.facts.max_model_len))
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
        print(f"{streams:>7} {count:>9,} {rates}")
    finally:
        await supervisor.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint of the tokenizer")
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=500, help="tokens per stream")
    parser.add_argument("--profile", action="store_true", help="print a profile")
    options = parser.parse_args()
    tokenizer = Tokenizer(open_checkpoint(options.model).text)
    print(f"{'streams':>7} {'tokens':>9} {'tokens/s':>12} {'tokens/s per core':>18} {'us/token':>10}")
    for streams in options.streams:
        profile = cProfile.Profile() if options.profile else None
        asyncio.run(measure(tokenizer, streams, options.tokens, profile))
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
