"""Convert messages of a request to messages for the chat template."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from octavo.frontend.conversation import tool_call
from octavo.server.http.errors import unsupported
from octavo.server.ollama.schema import OllamaMessage


def template_messages(messages: Sequence[OllamaMessage], id_length: int) -> list[dict[str, Any]]:
    """Return the messages. `id_length` is that of the ids of calls, which templates of some models check."""
    calls = CallsWithoutIds(id_length)
    return [_template_message(message, f"messages[{i}]", calls) for i, message in enumerate(messages)]


class CallsWithoutIds:
    """Gives ids to calls that have none, and to their results: many applications send neither.

    A result belongs to the first call without a result, of the function that it names, if it names one.
    """

    def __init__(self, id_length: int) -> None:
        self._id_length = id_length
        self._num_calls = 0
        self._of_function: defaultdict[str, deque[str]] = defaultdict(deque)  # ids of calls, in order
        self._all: deque[str] = deque()
        self._with_result: set[str] = set()

    def of_call(self, given: str | None, function: str) -> str:
        self._num_calls += 1
        call_id = given or f"{self._num_calls:0{self._id_length}}"
        self._of_function[function].append(call_id)
        self._all.append(call_id)
        return call_id

    def of_result(self, given: str | None, function: str | None) -> str | None:
        """Return the id of the call; None if there is none."""
        call_id = given or self._first(self._all if function is None else self._of_function[function])
        if call_id is not None:
            self._with_result.add(call_id)
        return call_id

    def _first(self, waiting: deque[str]) -> str | None:
        while waiting and waiting[0] in self._with_result:
            waiting.popleft()
        return waiting[0] if waiting else None


def _template_message(message: OllamaMessage, where: str, calls: CallsWithoutIds) -> dict[str, Any]:
    if message.images:
        raise unsupported(f"{where}.images", "an image")
    plain: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking is not None:
        plain["reasoning_content"] = message.thinking
    if message.role == "tool":
        call_id = calls.of_result(message.tool_call_id, message.tool_name)
        plain |= {} if call_id is None else {"tool_call_id": call_id}
        plain |= {} if message.tool_name is None else {"name": message.tool_name}
    if message.tool_calls:
        plain["tool_calls"] = [
            tool_call(
                calls.of_call(call.id, call.function.name), call.function.name, call.function.arguments or {}
            )
            for call in message.tool_calls
        ]
    return plain
