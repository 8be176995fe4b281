"""A process that loads a model and answers requests before and after poisoning its C library.

    LD_PRELOAD=poison.so python poisoned.py poison.so CHECKPOINT ISA...

Prints one report per instruction set, as JSON.
"""

import contextlib
import ctypes
import json
import math
import sys
from collections.abc import Sequence
from typing import TypedDict

from octavo import LLM, RequestOutput, SamplingParams

TOKENS = 12
PROMPTS = [[(7 * j + number) % 250 for j in range(length)] for number, length in enumerate((5, 70, 33))]
PARAMS = [
    SamplingParams(temperature=0.8, top_p=0.9, logprobs=2, seed=1, max_tokens=TOKENS, ignore_eos=True),
    SamplingParams(temperature=1.0, min_p=0.05, logprobs=2, seed=2, max_tokens=TOKENS, ignore_eos=True),
    SamplingParams(
        temperature=0.7,
        top_k=40,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        logit_bias={3: 2.5},
        prompt_logprobs=1,
        logprobs=2,
        seed=3,
        max_tokens=TOKENS,
        ignore_eos=True,
    ),
]


class PoisonReport(TypedDict):
    isa: str
    num_tokens: int  # of the plain answers; zero would mean that the engine fails with and without poison
    plain: list[str]
    poisoned: list[str]
    calls: int  # to poisoned functions, from anywhere in the process
    last: str  # name of the last function called
    works: bool  # whether a deliberate call was counted


def answers(checkpoint: str, isa: str) -> list[RequestOutput]:
    """Return the answers of a newly loaded model, so that rope frequencies and angles are recomputed."""
    llm = LLM(checkpoint, kernels=isa, threads=2, kv_memory="16MiB", progress=False)
    try:
        return llm.generate(PROMPTS, PARAMS)
    finally:
        llm.close()


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    """Return texts that are equal only if all floats are bit-identical."""
    return [
        repr((output.prompt_logprobs, [(choice.token_ids, choice.logprobs) for choice in output.choices]))
        for output in outputs
    ]


def report(poison: ctypes.CDLL, checkpoint: str, isa: str) -> PoisonReport:
    plain = answers(checkpoint, isa)
    before = poison.poisoned_calls()
    poison.poison(1)
    try:
        poisoned = answers(checkpoint, isa)
        calls, last = poison.poisoned_calls() - before, poison.last_poisoned_call().decode()
        with contextlib.suppress(ValueError):  # Python raises it for the NaN result
            math.log(2.0)
        works = poison.poisoned_calls() - before > calls
    finally:
        poison.poison(0)
    return {
        "isa": isa,
        "num_tokens": sum(len(choice.token_ids) for output in plain for choice in output.choices),
        "plain": texts(plain),
        "poisoned": texts(poisoned),
        "calls": calls,
        "last": last,
        "works": works,
    }


def main() -> None:
    library, checkpoint, *isas = sys.argv[1:]
    poison = ctypes.CDLL(library)
    poison.poisoned_calls.restype = ctypes.c_long
    poison.last_poisoned_call.restype = ctypes.c_char_p
    print(json.dumps([report(poison, checkpoint, isa) for isa in isas]))


if __name__ == "__main__":
    main()
