"""llama-index against a server at $URL, through two APIs: what it got goes to stdout as JSON."""

import json
import os
from importlib.metadata import version
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai_like import OpenAILike

URL = os.environ["URL"]


def add(a: float, b: float) -> float:
    """Add two numbers"""
    return a + b


def ask(model: Any) -> dict[str, Any]:
    message = ChatMessage(role="user", content="Hello")
    plain = model.chat([message]).message.content
    streamed = "".join(piece.delta or "" for piece in model.stream_chat([message]))
    tool = FunctionTool.from_defaults(add)
    result = model.predict_and_call([tool], "What is 2 + 3?")
    return {"plain": plain, "streamed": streamed, "result": f"The result is {float(str(result)):g}."}


chat = OpenAILike(
    model="scripted",
    api_base=f"{URL}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
)
messages = Anthropic(model="claude-sonnet-4-5", base_url=URL, api_key="none", max_tokens=100)
found = {"chat": ask(chat), "messages": ask(messages)}
print(json.dumps({"version": version("llama-index-core"), "found": found}))
