"""The OpenAI Agents SDK against a server at $URL, through two APIs: what it got goes to stdout as JSON."""

import asyncio
import json
import os
from importlib.metadata import version
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
called: list[dict[str, float]] = []


@function_tool
def add(a: float, b: float) -> float:
    """Add two numbers"""
    called.append({"a": a, "b": b})
    return a + b


async def ask(model: Any) -> dict[str, Any]:
    plain = await Runner.run(Agent(name="plain", model=model), "Hello")
    streamed = Runner.run_streamed(Agent(name="adder", model=model, tools=[add]), "What is 2 + 3?")
    kinds = [event.type async for event in streamed.stream_events()]
    return {
        "plain": plain.final_output,
        "arguments": called.pop(),
        "result": streamed.final_output,
        "has_events": "raw_response_event" in kinds,
    }


async def main() -> dict[str, Any]:
    client = AsyncOpenAI(base_url=f"{os.environ['URL']}/v1", api_key="none")
    kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    return {api: await ask(kind(model="scripted", openai_client=client)) for api, kind in kinds.items()}


print(json.dumps({"version": version("openai-agents"), "found": asyncio.run(main())}))
