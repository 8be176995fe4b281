"""Call a server with OpenAI's client: a streamed answer, then concurrent requests with reproducible answers.

pip install openai
python examples/server/ask.py http://127.0.0.1:8000 MODEL
"""

import asyncio
import os
import sys

from openai import AsyncOpenAI, OpenAI

COUNTRIES = ("France", "Italy", "Japan", "Peru")


def stream(client: OpenAI, model: str) -> None:
    chunks = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_completion_tokens=24,
        stream=True,
    )
    for chunk in chunks:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


async def ask_all(client: AsyncOpenAI, model: str, seed: int) -> list[str | None]:
    """Send all requests concurrently. The server batches them; with a seed, this changes no answer."""
    answers = await asyncio.gather(
        *(
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Tell me one thing about {country}."}],
                seed=seed,
                max_completion_tokens=16,
            )
            for country in COUNTRIES
        )
    )
    return [answer.choices[0].message.content for answer in answers]


async def ask_twice(client: AsyncOpenAI, model: str) -> None:
    first, again = await ask_all(client, model, seed=7), await ask_all(client, model, seed=7)
    for country, text in zip(COUNTRIES, first, strict=True):
        print(f"{country}: {text!r}")
    print("reproduced:", first == again)


def main() -> None:
    url, model = sys.argv[1:]
    key = os.environ.get("OCTAVO_API_KEY", "none")
    stream(OpenAI(base_url=f"{url}/v1", api_key=key), model)
    asyncio.run(ask_twice(AsyncOpenAI(base_url=f"{url}/v1", api_key=key), model))


if __name__ == "__main__":
    main()
