"""Builds the messages of a chat from the parts that APIs send, in the form that chat templates read.

Equal conversations have equal prompts, whichever API they came through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]


class ConversationBuilder:
    """Owned by the adapter that builds it. Consecutive parts of the assistant become one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add_system(self, text: str) -> None:
        self.messages.append({"role": "system", "content": text})

    def add_user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def add_result(self, call_id: str, text: str) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "content": text, "tool_call_id": call_id})

    def add_reasoning(self, text: str) -> None:
        message = self._assistant()
        message["reasoning_content"] = message.get("reasoning_content", "") + text

    def add_text(self, text: str) -> None:
        self._assistant()["content"] += text

    def add_call(self, call_id: str, name: str, arguments: str | Mapping[str, Any]) -> None:
        call = tool_call(call_id, name, arguments)
        self._assistant().setdefault("tool_calls", []).append(call)

    def _assistant(self) -> Message:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def with_system_first(messages: Sequence[Mapping[str, Any]]) -> list[Message] | None:
    """Return the messages with later system messages as text of the user; None if there are none.

    They keep their place, so the prompts of earlier turns remain prefixes. Consecutive messages of the user
    become one, because the templates that reject late system messages often require roles to alternate.
    """
    is_late = [index > 0 and message.get("role") == "system" for index, message in enumerate(messages)]
    if not any(is_late):
        return None
    result: list[Message] = []
    for message, late in zip(messages, is_late, strict=True):
        plain = {**message, "role": "user"} if late else dict(message)
        last = result[-1] if result else plain
        if plain.get("role") == "user" == last.get("role") and last is not plain and _are_texts(last, plain):
            last["content"] = f"{last['content']}\n\n{plain['content']}"
        else:
            result.append(plain)
    return result


def _are_texts(*messages: Message) -> bool:
    return all(isinstance(message.get("content"), str) for message in messages)


def tool_call(call_id: str | None, name: str, arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        **({} if call_id is None else {"id": call_id}),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
