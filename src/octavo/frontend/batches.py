"""Normalise the arguments of `LLM`: one or many prompts or conversations, in any kind of iterable.

Every iterable is read once, so generators work. An array (numpy, torch, `array`) counts as the list of its
elements. Values without an order (sets) or without a clear meaning (bytes, other mappings) are rejected.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import RequestError
from octavo.frontend.chat import Message
from octavo.frontend.intake import Prompt
from octavo.frontend.tool_use import Tool
from octavo.protocol import SamplingParams

PromptInput = str | Iterable[int] | Mapping[str, str | Iterable[int]]


def one_prompt(value: PromptInput) -> Prompt:
    """Return a prompt given as text, token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`."""
    if isinstance(value, Mapping):
        value = _of_mapping(value)
    if isinstance(value, str):
        return value
    ids = _items(value, "prompt")
    if not all(isinstance(item, int) for item in ids):
        raise RequestError(
            "a prompt must be a string or a list of token ids; only `generate` accepts a list of prompts",
            "prompt",
        )
    return ids


def prompts_of(value: PromptInput | Iterable[PromptInput]) -> list[Prompt]:
    """Return one or many prompts as a list. Integers are the token ids of a single prompt."""
    if isinstance(value, str | Mapping):
        return [one_prompt(value)]
    items = _items(value, "prompt")
    if any(isinstance(item, int) for item in items):
        return [one_prompt(items)]
    return [one_prompt(item) for item in items]


def one_conversation(value: Iterable[Message]) -> list[Message]:
    messages = _items(value, "messages")
    if not all(isinstance(message, Mapping) for message in messages):
        raise RequestError(
            "a conversation must be a list of messages, each a mapping with `role` and `content`", "messages"
        )
    return messages


def conversations_of(value: Iterable[Message] | Iterable[Iterable[Message]]) -> list[list[Message]]:
    """Return one or many conversations as a list. Mappings are the messages of a single conversation."""
    items = _items(value, "messages")
    if any(isinstance(item, Mapping) for item in items):
        return [one_conversation(items)]
    return [one_conversation(item) for item in items]


def tools_of(value: Iterable[Tool] | None) -> list[Tool] | None:
    return None if value is None else _items(value, "tools")


def one_params(params: SamplingParams | None, default: SamplingParams) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError(
            f"params must be SamplingParams, as in SamplingParams(temperature=0), not {_kind(params)}",
            "params",
        )
    return default if params is None else params


def params_for(
    prompts: Sequence[object],
    params: SamplingParams | Iterable[SamplingParams] | None,
    default: SamplingParams,
) -> list[SamplingParams]:
    """Return the parameters of each prompt, from one for all prompts or one for each."""
    if params is None or isinstance(params, SamplingParams):
        return [one_params(params, default)] * len(prompts)
    each = _items(params, "params")
    if len(each) != len(prompts):
        raise RequestError(
            f"{len(prompts)} prompts but {len(each)} params: pass one for all, or one for each", "params"
        )
    return [one_params(one, default) for one in each]


def _of_mapping(value: Mapping[str, Any]) -> str | Iterable[int]:
    keys = list(value)
    if keys not in (["prompt"], ["prompt_token_ids"]):
        raise RequestError(
            f'a prompt mapping must be {{"prompt": ...}} or {{"prompt_token_ids": ...}}, but has {keys}',
            "prompt",
        )
    inner: str | Iterable[int] = value[keys[0]]
    if isinstance(inner, Mapping) or (isinstance(inner, str) and keys == ["prompt_token_ids"]):
        raise RequestError(f"{keys[0]} must not be {_kind(inner)}", "prompt")
    return inner


def _items(value: Any, param: str) -> list[Any]:
    """Return the elements of an ordered iterable, with array elements converted to Python numbers."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise RequestError(f"{param} must not be {_kind(value)}: decode it to a string", param)
    if isinstance(value, set | frozenset):
        raise RequestError(f"{param} must not be {_kind(value)}, which has no order: pass a list", param)
    plain = _without_array(value)
    if isinstance(plain, str | Mapping) or not isinstance(plain, Iterable):
        raise RequestError(f"{param} must not be {_kind(value)}: pass a list", param)
    return [_without_array(item) for item in plain]


def _without_array(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, memoryview) else value


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
