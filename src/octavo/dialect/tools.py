"""The tools that a model may call, as far as reading its answer goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Tools(msgspec.Struct, frozen=True):
    """Names of functions, and of their parameters in the order they were described."""

    parameters: dict[str, tuple[str, ...]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.parameters


def described(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """From tools as OpenAI's clients write them."""
    functions = [tool["function"] for tool in tools]
    return Tools({function["name"]: _parameters(function) for function in functions})


def _parameters(function: Mapping[str, Any]) -> tuple[str, ...]:
    properties = (function.get("parameters") or {}).get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()
