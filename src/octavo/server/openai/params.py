"""Wire fields to `SamplingParams`, and what else chats and completions ask for alike. What a request leaves
out, the checkpoint's recommendation fills in."""

from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.protocol import SamplingParams
from octavo.server.generation import Asked
from octavo.server.openai.schema import ChatRequest, CompletionRequest, SamplingFields

LEGACY_MAX_TOKENS = 16  # of completions that do not say

SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
    "n",
    "prompt_logprobs",
    "skip_special_tokens",
)


def chat_params(request: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    longest = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return _params(request, defaults, max_tokens=longest, logprobs=(top or 0) if request.logprobs else None)


def completion_params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """With `echo` and `logprobs`, the tokens of the prompt are scored as those of the answer are."""
    longest = LEGACY_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if longest == 0 and request.echo:
        longest = 1  # only the prompt is wanted: what is generated is not shown
    scored = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        scored = max(request.logprobs, scored or 0)
    return _params(request, defaults, max_tokens=longest, logprobs=request.logprobs, prompt_logprobs=scored)


def asked_of(request: SamplingFields, response_id: str, identity: str) -> Asked:
    return Asked(
        response_id=response_id,
        identity=identity,
        is_stream=bool(request.stream),
        shows_prompt=request.wants_prompt_shown,
        priority=request.priority or 0,
        timeout=request.timeout,
        cache_salt=request.cache_salt or "",
    )


def _params(request: SamplingFields, defaults: SamplingParams, **given: Any) -> SamplingParams:
    values = {name: getattr(request, name) for name in SAME_NAME}
    values |= {
        "top_k": 0 if request.top_k == -1 else request.top_k,
        "stop": (request.stop,) if isinstance(request.stop, str) else _tuple(request.stop),
        "stop_token_ids": _tuple(request.stop_token_ids),
        "include_stop": request.include_stop_str_in_output,
        "logit_bias": None if request.logit_bias is None else _by_id(request.logit_bias),
    }
    values |= given
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in values.items() if value is not None}
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _by_id(bias: dict[str, float]) -> dict[int, float]:
    """JSON has text keys only."""
    if not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in bias):
        raise RequestError("logit_bias: keys are token ids, written as text", "logit_bias")
    return {int(key): value for key, value in bias.items()}
