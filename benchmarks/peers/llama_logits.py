"""Compute the log-likelihood of a text with llama.cpp. Runs in llama.cpp's environment, not in Octavo's.

    llama_logits.py MODEL.gguf < windows.json

Standard input is a list of windows, each a list of token ids. The output is the sum of the log-probabilities
of all tokens except the first of each window, and the number of these tokens.
"""

import json
import sys

import llama_cpp
import numpy


def main() -> None:
    windows = json.load(sys.stdin)
    longest = max(len(window) for window in windows)
    llm = llama_cpp.Llama(
        sys.argv[1], n_ctx=longest, n_batch=longest, n_threads=2, logits_all=True, verbose=False
    )
    total, count = 0.0, 0
    for window in windows:
        llm.reset()
        llm.eval(window)
        logits = llm.scores[: len(window) - 1]
        largest = logits.max(axis=1)
        sums = numpy.exp(logits - largest[:, None]).sum(axis=1, dtype=numpy.float64)
        chosen = logits[numpy.arange(len(window) - 1), window[1:]]
        total += float((chosen - largest - numpy.log(sums)).sum(dtype=numpy.float64))
        count += len(window) - 1
    json.dump([total, count], sys.stdout)


if __name__ == "__main__":
    main()
