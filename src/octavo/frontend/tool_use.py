"""The tools that a model sees, and how it may call them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.dialect.families import MISTRAL_OPEN
from octavo.errors import RequestError
from octavo.protocol import GrammarSpec

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": ..., "parameters": ...}}

TEXT_CALL = """\
Its input is text in this {kind} grammar:
{grammar}
To call it, end your answer with:
<tool_call>
{{"name": {name}}}
(input)"""


@dataclass(frozen=True)
class TextTool:
    """A tool whose input is text that conforms to a grammar, instead of arguments in JSON."""

    name: str
    description: str
    grammar: GrammarSpec  # a regex or Lark
    field: str  # the caller's name for the field of its grammar, for error messages


class ToolChoice(StrEnum):
    NONE = "none"  # the model sees no tools
    AUTO = "auto"  # the model calls any tools, or none
    REQUIRED = "required"  # at least one call


@dataclass(frozen=True)
class OnlyTool:
    """A tool choice: the function with this name is called exactly once."""

    name: str


@dataclass(frozen=True)
class OfferedTool:
    """A tool that the model sees."""

    name: str
    is_strict: bool  # arguments always conform to the schema, or the input to the grammar
    shown: dict[str, Any]  # in the form that templates expect, without `strict`
    field: str  # the caller's name for the field of its schema or grammar, for error messages
    grammar: GrammarSpec | None = None  # of the input of a text tool

    @property
    def function(self) -> dict[str, Any]:
        function: dict[str, Any] = self.shown["function"]
        return function


@dataclass(frozen=True)
class ToolUse:
    """How tools are used. Without tools, the answer is not searched for calls."""

    tools: tuple[OfferedTool, ...] = ()
    family: str = ""  # the model's native format for calls
    is_required: bool = False  # at least one call
    has_format: bool = False  # an answer without calls must conform to a grammar
    max_calls: int | None = None

    @property
    def forced_family(self) -> str:
        """The format of calls under a grammar.

        Python calls (Gemma) are not constrained by a grammar. Where the answer may be JSON instead of a call,
        a tag must distinguish them from the first character on.
        """
        if not self.is_required:
            return "hermes"
        return "llama" if self.family == "gemma" else self.family

    @property
    def is_forced(self) -> bool:
        """Whether the grammar of the answer is that of calls, or of calls and the requested format."""
        return self.is_required or self.has_format

    @property
    def is_strict(self) -> bool:
        """Whether a grammar constrains calls in other text: see `call_grammar.text_with_calls`."""
        return self.family == "hermes" and any(tool.is_strict for tool in self.tools) and not self.is_forced

    @property
    def answer_family(self) -> str:
        """The format in which calls are read."""
        family = self.forced_family if self.is_forced else self.family
        return "strict" if family == "hermes" and (self.is_forced or self.is_strict) else family

    @property
    def lead(self) -> str:
        """The start of the answer, added to the prompt, because grammars cannot contain special tokens."""
        return MISTRAL_OPEN if self.is_required and self.family == "mistral" else ""

    @property
    def shown(self) -> list[dict[str, Any]]:
        return [tool.shown for tool in self.tools]

    @property
    def functions(self) -> list[OfferedTool]:
        return [tool for tool in self.tools if tool.grammar is None]

    @property
    def text_tools(self) -> list[OfferedTool]:
        return [tool for tool in self.tools if tool.grammar is not None]


def tool_use(
    tools: Sequence[Tool],
    text_tools: Sequence[TextTool],
    choice: ToolChoice | OnlyTool,
    *,
    allows_several: bool,
    family: str,
    has_format: bool,
    fields: Sequence[str] = (),
) -> ToolUse:
    """Return how the tools are used. `fields` are the caller's names for the fields of their schemas.

    Text tools are called in the format of hermes, and so are all others beside them.
    """
    names_of_fields = fields or [f"tools[{index}].function.parameters" for index in range(len(tools))]
    offered = tuple(_offered(index, tool, names_of_fields[index]) for index, tool in enumerate(tools))
    offered += tuple(map(_offered_text_tool, text_tools))
    family = "hermes" if text_tools else family
    names = [tool.name for tool in offered]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools: function name {name!r} is not unique", "tools")
    is_required = choice is ToolChoice.REQUIRED or isinstance(choice, OnlyTool)
    if is_required and not offered:
        raise RequestError("tool_choice requires tools: send at least one", "tool_choice")
    if choice is ToolChoice.NONE:
        return ToolUse()
    if isinstance(choice, OnlyTool):
        if choice.name not in names:
            raise RequestError(
                f"tool_choice: there is no tool named {choice.name!r}", "tool_choice.function.name"
            )
        return ToolUse((offered[names.index(choice.name)],), family, is_required, has_format, max_calls=1)
    return ToolUse(offered, family, is_required, has_format, max_calls=None if allows_several else 1)


def _offered(index: int, tool: Tool, field: str) -> OfferedTool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        shape = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise RequestError(f"tools[{index}]: a tool must have the form {shape}", "tools")
    shown = {key: value for key, value in function.items() if key != "strict"}
    return OfferedTool(name, bool(function.get("strict")), {**tool, "function": shown}, field)


def _offered_text_tool(tool: TextTool) -> OfferedTool:
    kind, name = tool.grammar.kind.value, json.dumps(tool.name)
    how = TEXT_CALL.format(kind=kind, grammar=tool.grammar.text, name=name)
    description = "\n".join(filter(None, (tool.description, how)))
    parameters = {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": description, "parameters": parameters}
    return OfferedTool(
        tool.name, True, {"type": "function", "function": function}, tool.field, grammar=tool.grammar
    )
