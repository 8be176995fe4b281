"""Score several endings of a sentence with prompt logprobs, as evaluations do.

python examples/score_choices.py MODEL
"""

import sys

from octavo import LLM, SamplingParams

QUESTION = "The capital of France is"
ENDINGS = [" Paris", " Berlin", " bananas"]


def main() -> None:
    (model,) = sys.argv[1:]
    with LLM(model) as llm:
        start = len(llm.tokenizer.encode(QUESTION))
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        for ending, output in zip(
            ENDINGS, llm.generate([QUESTION + ending for ending in ENDINGS], params), strict=True
        ):
            # The first prompt token has no logprob, so position p is at index p - 1.
            assert output.prompt_logprobs is not None
            score = sum(token.logprob for token in output.prompt_logprobs[start - 1 :])
            print(f"{score:8.3f} {ending!r}")


if __name__ == "__main__":
    main()
