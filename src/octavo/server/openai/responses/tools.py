"""The tools of a request as functions, which is what models know, and back.

A custom tool becomes a function with one string, `input`, or a text tool if its input has a grammar. The
functions of a namespace get its name as a prefix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.dialect.plain_text import INPUT
from octavo.frontend.tool_use import OnlyTool, TextTool, Tool, ToolChoice
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.server.http.errors import invalid, unsupported
from octavo.server.openai.responses.schema import (
    AllowedTools,
    CallableTool,
    NamedChoice,
    ResponsesRequest,
    ResponsesTool,
)

# Of a custom tool without a grammar.
TEXT_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
SEPARATOR = "__"  # between the names of a namespace and of its function
MAX_FUNCTIONS = 512
SYNTAXES = {"regex": GrammarKind.REGEX, "lark": GrammarKind.LARK}


@dataclass(frozen=True)
class ClientTool:
    """A function that the model sees, as the client knows it."""

    name: str
    namespace: str | None
    is_custom: bool
    shown: Tool | TextTool
    field: str  # of the schema of its parameters, or of the grammar of its input

    @property
    def function(self) -> str:
        """The name that the model sees."""
        return function_name(self.name, self.namespace)

    @property
    def has_grammar(self) -> bool:
        """Whether its input conforms to a grammar."""
        return isinstance(self.shown, TextTool)

    def custom_input(self, called_with: str) -> str:
        """Return the input of a call of this custom tool, which may be cut off."""
        return called_with if self.has_grammar else input_of(called_with)


@dataclass(frozen=True)
class ToolBox:
    """The tools that the model sees in one request, and how it may call them."""

    tools: tuple[ClientTool, ...]
    choice: ToolChoice | OnlyTool

    def __iter__(self) -> Iterator[ClientTool]:
        return iter(self.tools)

    @property
    def functions(self) -> dict[str, Tool]:
        """Tools by the names of the fields of their schemas."""
        return {tool.field: tool.shown for tool in self.tools if not isinstance(tool.shown, TextTool)}

    @property
    def text_tools(self) -> list[TextTool]:
        return [tool.shown for tool in self.tools if isinstance(tool.shown, TextTool)]

    def by_function(self) -> dict[str, ClientTool]:
        return {tool.function: tool for tool in self.tools}


def tool_box(body: ResponsesRequest) -> ToolBox:
    """Return the tools. Raises 400 for hosted tools, and for a choice of a tool that is not there."""
    tools = tuple(_client_tools(body.tools or ()))
    if len(tools) > MAX_FUNCTIONS:
        raise invalid(f"tools: at most {MAX_FUNCTIONS} functions are allowed in all namespaces", "tools")
    choice = body.tool_choice
    if isinstance(choice, NamedChoice):
        return ToolBox(tools, OnlyTool(_chosen(tools, choice, "tool_choice").function))
    if isinstance(choice, AllowedTools):
        allowed = {
            _chosen(tools, one, f"tool_choice.tools[{i}]").function for i, one in enumerate(choice.tools)
        }
        return ToolBox(tuple(tool for tool in tools if tool.function in allowed), ToolChoice(choice.mode))
    return ToolBox(tools, ToolChoice(choice or ToolChoice.AUTO))


def function_name(name: str, namespace: str | None) -> str:
    """Return the name of a function as the model sees it."""
    if not namespace:
        return name
    return namespace + ("" if namespace.endswith(SEPARATOR) else SEPARATOR) + name


def _chosen(tools: Sequence[ClientTool], choice: NamedChoice, where: str) -> ClientTool:
    is_custom = choice.type == "custom"
    for tool in tools:
        if tool.is_custom == is_custom and choice.name in (tool.function, tool.name):
            return tool
    raise invalid(f"{where}: there is no {choice.type} tool named {choice.name!r}", where)


def _client_tools(tools: Sequence[ResponsesTool]) -> Iterator[ClientTool]:
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type not in ("function", "custom", "namespace"):
            raise unsupported(f"{where}.type", f"the hosted tool {tool.type[:40]!r}")
        if tool.name is None:
            raise invalid(f"{where}.name is missing", f"{where}.name")
        if tool.type == "namespace":
            if tool.tools is None:
                raise invalid(f"{where}.tools is missing", f"{where}.tools")
            for number, member in enumerate(tool.tools):
                yield _client_tool(member, member.name, f"{where}.tools[{number}]", tool)
        else:
            yield _client_tool(tool, tool.name, where)


def _client_tool(
    tool: ResponsesTool | CallableTool, name: str, where: str, namespace: ResponsesTool | None = None
) -> ClientTool:
    is_custom = tool.type == "custom"
    prefix = None if namespace is None else namespace.name
    descriptions = (None if namespace is None else namespace.description, tool.description)
    description = "\n".join(filter(None, descriptions))
    grammar = _input_grammar(tool, where) if is_custom else None
    if grammar is not None:
        field = f"{where}.format.definition"
        shown = TextTool(function_name(name, prefix), description, grammar, field)
        return ClientTool(name, prefix, is_custom, shown, field)
    function: dict[str, Any] = {"name": function_name(name, prefix)}
    if description:
        function["description"] = description
    if is_custom:
        function["parameters"] = TEXT_PARAMETERS
    elif tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict and not is_custom:
        function["strict"] = True
    field = f"{where}.parameters"
    return ClientTool(name, prefix, is_custom, {"type": "function", "function": function}, field)


def _input_grammar(tool: ResponsesTool | CallableTool, where: str) -> GrammarSpec | None:
    """Return the grammar of the input of a custom tool; None if it may be any text."""
    form = tool.format
    if form is None or form.type == "text":
        return None
    field = f"{where}.format"
    if form.definition is None or form.syntax is None:
        raise invalid(f"{field}: a grammar requires syntax and definition", field)
    if form.syntax not in SYNTAXES:
        raise unsupported(
            f"{field}.syntax", f"a grammar with the syntax {form.syntax[:40]!r} (use lark or regex)"
        )
    return GrammarSpec(SYNTAXES[form.syntax], form.definition)


# -- the input of a custom tool ----------------------------------------------------------------------------


def input_of(arguments: str) -> str:
    """Return the text in the arguments of a custom tool's function.

    Models may write anything: other arguments are returned as they are.
    """
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return _begun_input(arguments)
    if isinstance(decoded, dict) and isinstance(decoded.get(INPUT), str):
        text: str = decoded[INPUT]
        return text
    return arguments


def _begun_input(arguments: str) -> str:
    """Return what there is of the text in arguments that were cut off."""
    head, quote, text = arguments.partition(f'"{INPUT}"')
    text = text.lstrip(" \t\r\n:")
    if head.strip(" \t\r\n{") or not quote or not text.startswith('"'):
        return arguments
    for dropped in range(min(len(text), 13)):  # the longest escape sequence is a pair of surrogates
        try:
            return msgspec.json.decode(text[: len(text) - dropped] + '"', type=str)
        except msgspec.DecodeError:
            continue
    return arguments


def custom_arguments(text: str) -> dict[str, str]:
    return {INPUT: text}
