"""The tools that a model sees, and how it may call them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.dialect.families import MISTRAL_OPEN
from octavo.errors import RequestError

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": ..., "parameters": ...}}


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
    is_strict: bool  # arguments always conform to the schema
    shown: dict[str, Any]  # in the form that templates expect, without `strict`
    field: str  # the caller's name for the field of its schema, for error messages

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
    def lead(self) -> str:
        """The start of the answer, added to the prompt, because grammars cannot contain special tokens."""
        return MISTRAL_OPEN if self.is_required and self.family == "mistral" else ""

    @property
    def shown(self) -> list[dict[str, Any]]:
        return [tool.shown for tool in self.tools]

    @property
    def functions(self) -> list[dict[str, Any]]:
        return [tool.function for tool in self.tools]


def tool_use(
    tools: Sequence[Tool],
    choice: ToolChoice | OnlyTool,
    *,
    allows_several: bool,
    family: str,
    has_format: bool,
    fields: Sequence[str] = (),
) -> ToolUse:
    """Return how the tools are used. `fields` are the caller's names for the fields of their schemas."""
    names_of_fields = fields or [f"tools[{index}].function.parameters" for index in range(len(tools))]
    offered = tuple(_offered(index, tool, names_of_fields[index]) for index, tool in enumerate(tools))
    names = [tool.name for tool in offered]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools: function name {name!r} is not unique", "tools")
    is_required = choice is ToolChoice.REQUIRED or isinstance(choice, OnlyTool)
    if is_required and not tools:
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
