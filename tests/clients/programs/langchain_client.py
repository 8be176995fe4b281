"""langchain-anthropic against a server at $URL: what it got goes to stdout as JSON."""

import json
import os
from importlib.metadata import version

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


@tool
def add(a: float, b: float) -> float:
    """Add two numbers"""
    return a + b


model = ChatAnthropic(model="scripted", base_url=os.environ["URL"], api_key="none", max_tokens=100)
messages = [HumanMessage("Hello")]
plain = model.invoke(messages).text
streamed = "".join(chunk.text for chunk in model.stream(messages))
with_tools = model.bind_tools([add])
asked = with_tools.invoke(messages)
(called,) = asked.tool_calls
result = ToolMessage(str(add.invoke(called["args"])), tool_call_id=called["id"])
answer = with_tools.invoke([*messages, asked, result]).text
found = {"plain": plain, "streamed": streamed, "arguments": called["args"], "result": answer}
print(json.dumps({"version": version("langchain-anthropic"), "found": {"messages": found}}))
