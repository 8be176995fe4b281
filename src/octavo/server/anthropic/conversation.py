"""Convert the prompt of a request to messages for the chat template."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from octavo.frontend.conversation import ConversationBuilder
from octavo.server.anthropic.client_nonces import is_nonce
from octavo.server.anthropic.schema import (
    BLOCK_TYPES,
    ROLES,
    ContentBlock,
    InputTurn,
    PromptBody,
    TextBlock,
)
from octavo.server.http.errors import ApiError, invalid, unsupported

ID_PREFIX = "toolu_"
ERROR_PREFIX = "Error: "  # before the result of a call that failed, which templates cannot express


@dataclass(frozen=True)
class TemplatePrompt:
    """The messages of a request, for the chat template."""

    messages: Sequence[dict[str, Any]]
    num_dropped: int = 0  # system blocks: see `client_nonces`
    continues: bool = False  # the answer continues the last message


def template_prompt(body: PromptBody) -> TemplatePrompt:
    conversation = ConversationBuilder()
    system, num_dropped = _system(body)
    if system:
        conversation.add_system(system)
    last: AssistantParts | None = None
    numbered = enumerate(body.messages)
    # Consecutive messages of the assistant are one. They are joined here, because their number is not small.
    for role, turns in groupby(numbered, key=lambda one: one[1].role):
        last = None
        if role == "assistant":
            last = AssistantParts()
            for index, turn in turns:
                last.add(turn, f"messages[{index}]")
            last.add_to(conversation)
            continue
        for index, turn in turns:
            if role == "user":
                _add_user(conversation, turn, f"messages[{index}]")
            else:
                conversation.add_system(_text_of(turn, f"messages[{index}]"))
    if last is not None and last.calls:
        where = f"messages[{len(body.messages) - 1}]"
        raise invalid(f"{where}: the last message has a tool_use: send its tool_result after it", where)
    return TemplatePrompt(conversation.messages, num_dropped, continues=last is not None)


def call_id(wire_id: str) -> str:
    """Return the id of a call for the template, which may require the length of the server's own ids."""
    return wire_id.removeprefix(ID_PREFIX)


def wire_id(own_id: str) -> str:
    return ID_PREFIX + own_id


def _system(body: PromptBody) -> tuple[str, int]:
    """Return the system prompt and how many blocks were dropped from it."""
    system = body.system
    if not isinstance(system, list):
        return system or "", 0
    texts = [_block_text(block, f"system[{index}]") for index, block in enumerate(system)]
    num_dropped = int(bool(texts) and not body.keep_system_blocks and is_nonce(texts[0]))
    return "".join(texts[num_dropped:]), num_dropped


def _add_user(conversation: ConversationBuilder, turn: InputTurn, where: str) -> None:
    """Add a message. Results of calls come before the other text, as templates expect them."""
    texts: list[str] = []
    has_results = False
    for block, place in _blocks(turn, where):
        if block.type == "text":
            texts.append(_given(block.text, place, "text"))
            continue
        has_results = True
        identifier = call_id(_given(block.tool_use_id, place, "tool_use_id"))
        conversation.add_result(identifier, (ERROR_PREFIX if block.is_error else "") + _result(block, place))
    text = "".join(texts)
    if text or not has_results:
        conversation.add_user(text)


def _result(block: ContentBlock, where: str) -> str:
    content = block.content
    if not isinstance(content, list):
        return content or ""
    return "".join([_block_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)])


def _text_of(turn: InputTurn, where: str) -> str:
    return "".join([_given(block.text, place, "text") for block, place in _blocks(turn, where)])


@dataclass
class AssistantParts:
    """What the assistant wrote between two messages of others. Redacted thinking cannot be read."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def add(self, turn: InputTurn, where: str) -> None:
        for block, place in _blocks(turn, where):
            match block.type:
                case "text":
                    self.texts.append(_given(block.text, place, "text"))
                case "thinking":
                    self.reasoning.append(_given(block.thinking, place, "thinking"))
                case "tool_use":
                    name = _given(block.name, place, "name")
                    if block.input is None:
                        raise _missing(place, "input")
                    self.calls.append((call_id(_given(block.id, place, "id")), name, block.input))

    def add_to(self, conversation: ConversationBuilder) -> None:
        if reasoning := "".join(self.reasoning):
            conversation.add_reasoning(reasoning)
        conversation.add_text("".join(self.texts))
        for identifier, name, given in self.calls:
            conversation.add_call(identifier, name, given)


def _blocks(turn: InputTurn, where: str) -> list[tuple[ContentBlock, str]]:
    """Return the blocks of a message and their places in the body."""
    if isinstance(turn.content, str):
        return [(ContentBlock(type="text", text=turn.content), f"{where}.content")]
    placed = [(block, f"{where}.content[{index}]") for index, block in enumerate(turn.content)]
    for block, place in placed:
        if block.type not in ROLES[turn.role]:
            raise _wrong_type(block.type, place, turn.role)
    return placed


def _wrong_type(kind: str, where: str, role: str) -> ApiError:
    if kind in BLOCK_TYPES:
        return invalid(f"{where}: a message with the role {role} has no blocks of type {kind}", where)
    return unsupported(where, f"content of type {kind[:40]!r}")


def _block_text(block: TextBlock, where: str) -> str:
    if block.type != "text":
        raise unsupported(where, f"content of type {block.type[:40]!r}")
    return _given(block.text, where, "text")


def _given(value: str | None, where: str, name: str) -> str:
    if value is None:
        raise _missing(where, name)
    return value


def _missing(where: str, name: str) -> ApiError:
    return invalid(f"{where}.{name} is missing", f"{where}.{name}")
