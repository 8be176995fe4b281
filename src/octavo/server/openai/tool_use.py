"""What a request says of tools, made definite: which the model sees, and what its answer is searched for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from octavo.dialect.families import MISTRAL_OPEN
from octavo.dialect.reader import AnswerFormat
from octavo.dialect.reasoning import Reasons
from octavo.dialect.tools import described
from octavo.server.http.errors import invalid
from octavo.server.openai.schema import ChatRequest, NamedTool, Tool
from octavo.server.state import ServedModel
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ToolUse:
    """No tools: the model sees none, and its answer is not searched for calls."""

    tools: tuple[Tool, ...] = ()
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

    @cached_property
    def for_template(self) -> list[dict[str, Any]]:
        """As templates expect them. How strictly they are kept is not the model's business."""
        return [_plain(tool) for tool in self.tools]

    @property
    def functions(self) -> list[dict[str, Any]]:
        return [tool["function"] for tool in self.for_template]


def tool_use(body: ChatRequest, family: str) -> ToolUse:
    tools = tuple(body.tools or ())
    has_format = body.structured_outputs is not None or body.format_wanted is not None
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"tools: there are two functions with the name {name!r}", "tools")
    choice = body.tool_choice
    if choice not in (None, "none", "auto") and not tools:
        raise invalid("tool_choice needs tools to choose from", "tool_choice")
    if choice == "none":
        return ToolUse()
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise invalid(
                f"tool_choice: no tool has the name {choice.function.name!r}", "tool_choice.function.name"
            )
        chosen = tuple(tool for tool in tools if tool.function.name == choice.function.name)
        return ToolUse(chosen, family, is_required=True, has_format=has_format, max_calls=1)
    max_calls = 1 if body.parallel_tool_calls is False else None
    is_required = choice == "required"
    return ToolUse(tools, family, is_required=is_required, has_format=has_format, max_calls=max_calls)


def answer_format(model: ServedModel, use: ToolUse, reasons: Reasons) -> AnswerFormat | None:
    """None if an answer is nothing but text."""
    if not use.tools:
        return None if reasons is Reasons.NEVER else AnswerFormat(reasons)
    return AnswerFormat(
        reasons,
        use.forced_family if use.is_required or use.has_format else use.family,
        described(use.for_template),
        max_calls=use.max_calls,
        marker_ids=_ids(model.tokenizer, model.dialect.markers),
        lead=use.lead,
    )


def _ids(tokenizer: Tokenizer, markers: Sequence[str]) -> tuple[int, ...]:
    ids = [tokenizer.token_id(marker) for marker in markers]
    return tuple([token_id for token_id in ids if token_id is not None])


def _plain(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(exclude_none=True, exclude={"function": {"strict"}})
