"""The tools that a model may call, reduced to what the parser of answers needs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Tools(msgspec.Struct, frozen=True):
    """Names of functions, and of their parameters in the order of the tool descriptions."""

    parameters: dict[str, tuple[str, ...]] = {}
    # Only for answers that a grammar constrains: see `call_grammar`.
    text_tools: tuple[str, ...] = ()  # of these, the ones whose input is text after the call
    may_be_bare: bool = False  # calls need no tag

    def __contains__(self, name: str) -> bool:
        return name in self.parameters


def parse_tools(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Convert tools in the format of the OpenAI API."""
    functions = [tool["function"] for tool in tools]
    return Tools({function["name"]: _parameters(function) for function in functions})


def _parameters(function: Mapping[str, Any]) -> tuple[str, ...]:
    properties = (function.get("parameters") or {}).get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()
