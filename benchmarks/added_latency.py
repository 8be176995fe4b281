"""Measures how much HTTP adds to the time between two tokens, compared with the engine alone.

python benchmarks/added_latency.py MODEL [--streams 64] [--tokens 128] [--threads 1] [--dtype bfloat16]

"Alone" is the engine core in a separate process, called directly: no sockets, no text. "HTTP" is `octavo
serve` with one connection per stream, read by a client in this process. Rounds of the two alternate. If the
engine has as many threads as there are cores, engine, front end and client compete for them.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from load.figure import run
from load.wire import COMPLETIONS, ask
from server.process import Server

PROMPT = list(range(100, 116))


def engine_alone(model: str, options: dict[str, Any], streams: int, tokens: int) -> list[float]:
    """Return the mean seconds between two tokens of each stream."""
    from octavo.checkpoint import open_checkpoint
    from octavo.config import EngineOptions
    from octavo.engine.build import build_engine
    from octavo.protocol import GenerateRequest, SamplingParams

    core, _ = build_engine(open_checkpoint(model), EngineOptions(model=model, **options), progress=False)
    for number in range(streams):
        params = SamplingParams(max_tokens=tokens, seed=number)
        prompt = (*PROMPT, number + 100)
        core.handle(GenerateRequest(request_id=str(number), prompt_ids=prompt, params=params))
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    while core.has_unfinished:
        outputs = core.step().outputs
        now = time.perf_counter()
        for output in outputs:
            first.setdefault(output.request_id, now)
            last[output.request_id] = now
    return [(last[name] - first[name]) / (tokens - 1) for name in first]


def over_http(port: int, streams: int, tokens: int) -> list[float]:
    async def stream(number: int) -> float:
        body = {"prompt": [*PROMPT, number + 100], "max_tokens": tokens, "ignore_eos": True, "stream": True}
        answer = await ask(port, COMPLETIONS, body | {"seed": number, "temperature": 1.0})
        assert answer.status == 200, bytes(answer.body)
        assert answer.done_at is not None
        assert answer.first_at is not None
        return (answer.done_at - answer.first_at) / (tokens - 1)

    async def all_streams() -> list[float]:
        return list(await asyncio.gather(*(stream(number) for number in range(streams))))

    return run(all_streams())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="tokens per stream")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # Without prefix caching: otherwise the second round would have less to compute.
    common = {"threads": options.threads, "dtype": options.dtype, "max_running": options.streams}
    common |= {"kv_memory": "512MiB", "max_model_len": 1024, "prefix_caching": False}
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in common.items() if name != "prefix_caching"
    ]
    alone: list[float] = []
    http: list[float] = []
    print(f"{'round':>5} {'alone':>12} {'HTTP':>12} {'added':>8}")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        for number in range(options.rounds):
            arguments = (options.model, common, options.streams, options.tokens)
            alone.append(statistics.median(pool.submit(engine_alone, *arguments).result()))
            server = Server(Path(folder), Path(options.model), "--no-prefix-caching", *flags, records=False)
            try:
                server.wait_until_ready()
                http.append(statistics.median(over_http(server.port, options.streams, options.tokens)))
            finally:
                server.stop()
            _print(str(number), alone[-1], http[-1])
    _print("all", statistics.median(alone), statistics.median(http))


def _print(name: str, alone: float, http: float) -> None:
    print(
        f"{name:>5} {1e3 * alone:>9.2f} ms {1e3 * http:>9.2f} ms {100 * (http / alone - 1):>7.1f}%",
        flush=True,
    )


if __name__ == "__main__":
    main()
