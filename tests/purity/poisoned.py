"""A process whose C library can be poisoned. It loads a model and answers, before and after that.

    LD_PRELOAD=poison.so python poisoned.py poison.so CHECKPOINT ISA...

Prints what happened as JSON, for each instruction set.
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


class Told(TypedDict):
    isa: str
    num_tokens: int  # of the plain answers: an engine that fails would fail alike with poison
    plain: list[str]
    poisoned: list[str]
    calls: int  # of poisoned functions, from anywhere in the process
    last: str  # the last of them
    works: bool  # a call was noticed that was made on purpose


def answers(checkpoint: str, isa: str) -> list[RequestOutput]:
    """Of a model that is loaded for it: so the frequencies and angles of rope are computed anew."""
    llm = LLM(checkpoint, kernels=isa, threads=2, kv_memory="16MiB", progress=False)
    try:
        return llm.generate(PROMPTS, PARAMS)
    finally:
        llm.close()


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    """Those of two floats are equal only if every bit is."""
    return [
        repr((output.prompt_logprobs, [(choice.token_ids, choice.logprobs) for choice in output.choices]))
        for output in outputs
    ]


def tell(poison: ctypes.CDLL, checkpoint: str, isa: str) -> Told:
    plain = answers(checkpoint, isa)
    before = poison.poisoned_calls()
    poison.poison(1)
    try:
        poisoned = answers(checkpoint, isa)
        calls, last = poison.poisoned_calls() - before, poison.last_poisoned_call().decode()
        with contextlib.suppress(ValueError):  # which is what Python makes of a NaN
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
    print(json.dumps([tell(poison, checkpoint, isa) for isa in isas]))


if __name__ == "__main__":
    main()
