"""Which tools a model sees, and how it may call them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.dialect.families import MISTRAL_OPEN
from octavo.errors import RequestError

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": ..., "parameters": ...}}


class ToolChoice(StrEnum):
    NONE = "none"  # the model sees no tools
    AUTO = "auto"  # it calls what it likes, or nothing
    REQUIRED = "required"  # at least one call


@dataclass(frozen=True)
class OnlyTool:
    """The function with this name is called, and once."""

    name: str


@dataclass(frozen=True)
class OfferedTool:
    """A tool that the model sees."""

    index: int  # among those that the caller gave
    name: str
    is_strict: bool  # arguments always conform to their schema
    shown: dict[str, Any]  # as templates expect it; how strictly it is kept is not the model's business

    @property
    def function(self) -> dict[str, Any]:
        function: dict[str, Any] = self.shown["function"]
        return function


@dataclass(frozen=True)
class ToolUse:
    """No tools: the model sees none, and its answer is not searched for calls."""

    tools: tuple[OfferedTool, ...] = ()
    family: str = ""  # how the model writes calls by itself
    is_required: bool = False  # at least one call
    has_format: bool = False  # an answer without calls is held to one
    max_calls: int | None = None

    @property
    def forced_family(self) -> str:
        """How calls are written where a grammar has the say.

        Python is not a thing to hold a model to. And where JSON may come instead of a call, a tag must tell
        them apart from the first character on.
        """
        if not self.is_required:
            return "hermes"
        return "llama" if self.family == "gemma" else self.family

    @property
    def lead(self) -> str:
        """What the answer begins with before the model writes a word: special tokens are in no grammar."""
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
) -> ToolUse:
    offered = tuple(_offered(index, tool) for index, tool in enumerate(tools))
    names = [tool.name for tool in offered]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools: there are two functions with the name {name!r}", "tools")
    is_required = choice is ToolChoice.REQUIRED or isinstance(choice, OnlyTool)
    if is_required and not tools:
        raise RequestError("tool_choice needs tools to choose from", "tool_choice")
    if choice is ToolChoice.NONE:
        return ToolUse()
    if isinstance(choice, OnlyTool):
        if choice.name not in names:
            raise RequestError(
                f"tool_choice: no tool has the name {choice.name!r}", "tool_choice.function.name"
            )
        return ToolUse((offered[names.index(choice.name)],), family, is_required, has_format, max_calls=1)
    return ToolUse(offered, family, is_required, has_format, max_calls=None if allows_several else 1)


def _offered(index: int, tool: Tool) -> OfferedTool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        shape = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise RequestError(f"tools[{index}]: a tool is {shape}", "tools")
    shown = {key: value for key, value in function.items() if key != "strict"}
    return OfferedTool(index, name, bool(function.get("strict")), {**tool, "function": shown})
