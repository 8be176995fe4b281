"""Stream several answers concurrently with asyncio; they run in one batch.

python examples/async_streams.py MODEL
"""

import asyncio
import sys

from octavo import LLM, SamplingParams

PROMPTS = ["The sun is", "The moon is", "A comet is"]


async def answer(llm: LLM, prompt: str) -> str:
    deltas = llm.astream(prompt, SamplingParams(temperature=0, max_tokens=12))
    return prompt + "".join([delta.text async for delta in deltas])


async def main() -> None:
    (model,) = sys.argv[1:]
    with LLM(model) as llm:
        for text in await asyncio.gather(*(answer(llm, prompt) for prompt in PROMPTS)):
            print(repr(text))


if __name__ == "__main__":
    asyncio.run(main())
