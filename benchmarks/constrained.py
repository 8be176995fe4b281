"""Measures the cost of grammars: tokens per second of free streams, constrained streams, and both together.

    python benchmarks/constrained.py MODEL [--streams 16] [--tokens 64] [--rounds 5]

Rounds are interleaved, and the table shows medians. Every stream has the same number of tokens: free
streams ignore the end token, and the schema does not allow the others to end. `neighbours` is the time
between two tokens of the free streams when one other stream is constrained, divided by the time when none
is.
"""

import argparse
import statistics
import time
from collections import defaultdict

from octavo import LLM, GrammarKind, GrammarSpec, SamplingParams

SCHEMA = """{"type": "array", "minItems": 1000, "items": {"type": "object", "additionalProperties": false,
"required": ["name", "age", "tags"], "properties": {"name": {"type": "string", "maxLength": 20},
"age": {"type": "integer", "minimum": 0, "maximum": 150},
"tags": {"type": "array", "maxItems": 3, "items": {"enum": ["red", "green", "blue"]}}}}}"""
GRAMMAR = GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA)


def params(number: int, max_tokens: int, *, constrained: bool) -> SamplingParams:
    return SamplingParams(
        temperature=1.0,
        seed=number,
        max_tokens=max_tokens,
        ignore_eos=not constrained,
        grammar=GRAMMAR if constrained else None,
    )


def tokens_per_second(
    llm: LLM, num_streams: int, num_constrained: int, max_tokens: int
) -> tuple[float, float]:
    """Return the rate of all streams, and the time between tokens of the first, which is free if any is."""
    each = [params(n, max_tokens, constrained=n >= num_streams - num_constrained) for n in range(num_streams)]
    prompts = [f"Number {n}: a list of people, as JSON.\n" for n in range(num_streams)]
    started = time.perf_counter()
    outputs = llm.generate(prompts, each, progress=False)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(output.choices[0].token_ids) for output in outputs)
    assert num_tokens == num_streams * max_tokens
    return num_tokens / seconds, outputs[0].choices[0].timings.decode / (max_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kinds = {"free": 0, "one constrained": 1, "all constrained": options.streams}
    rates: dict[str, list[float]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    with LLM(options.model, kv_memory="512MiB", prefix_caching=False, progress=False) as llm:
        tokens_per_second(llm, options.streams, 1, 8)  # warm-up: compiles the grammar
        for _ in range(options.rounds):
            for name, num_constrained in kinds.items():
                rate, gap = tokens_per_second(llm, options.streams, num_constrained, options.tokens)
                rates[name].append(rate)
                gaps[name].append(gap)
    free = statistics.median(rates["free"])
    print(f"| {options.streams} streams | tokens/s | relative to free |\n|---|---|---|")
    for name in kinds:
        rate = statistics.median(rates[name])
        print(f"| {name} | {rate:.0f} | {rate / free:.1%} |")
    ratio = statistics.median(gaps["one constrained"]) / statistics.median(gaps["free"])
    print(f"neighbours: {ratio:.3f}")


if __name__ == "__main__":
    main()
