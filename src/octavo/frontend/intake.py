"""The one door: everything a client sends is checked, tokenised and made definite here.

What passes will not fail in the engine: numbers are finite and in range, ids exist, the length fits, and
the seed is set, so that from here on the response is a function of the request.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.dialect.reader import AnswerFormat
from octavo.errors import ContextLengthError, GrammarError, RequestError
from octavo.protocol import GenerateRequest, GrammarSpec, SamplingParams
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Limits:
    """Caps on what one request may ask for."""

    vocab_size: int
    max_model_len: int
    max_n: int = 128
    max_stop_strings: int = 16
    max_stop_bytes: int = 256
    max_logprobs: int = 20
    max_logit_bias: int = 1024
    max_stop_token_ids: int = 1024


# From the smallest that is allowed to the largest. The server's description of its API has them from here.
NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),  # but not 0
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
LOGIT_BIAS = (-100.0, 100.0)
TIMEOUT = (1e-9, 1e9)
PRIORITY = (-(1 << 31), 1 << 31)
MAY_BE_NONE = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


def whole_numbers(limits: Limits) -> dict[str, tuple[int, int]]:
    return {
        "top_k": (0, 1 << 31),
        "n": (1, limits.max_n),
        "min_tokens": (0, limits.max_model_len),
        "max_tokens": (1, 1 << 31),
        "seed": (-(1 << 63), (1 << 64) - 1),
        "logprobs": (0, limits.max_logprobs),
        "prompt_logprobs": (0, limits.max_logprobs),
    }


@dataclass(frozen=True)
class PreparedRequest:
    """A request to be carried out: its prompt as ids, its parameters definite, a message per choice."""

    request_id: str  # the engine's: never used twice
    name: str  # the caller's id, which may come again
    prompt: str | None  # None if the client sent token ids
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    messages: tuple[GenerateRequest, ...]
    format: AnswerFormat | None = None  # None: an answer is text


class Intake:
    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        now: float,
        name: str | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        format: AnswerFormat | None = None,
    ) -> PreparedRequest:
        check_params(params, self._limits)
        _check_integer("priority", priority, *PRIORITY)
        _check_number("timeout", 1.0 if timeout is None else timeout, *TIMEOUT)
        for field, value in (("cache_salt", cache_salt), ("request_id", name or "")):
            if not isinstance(value, str):
                raise RequestError(f"{field} must be a string", field)
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            prompt_ids = tuple(self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        else:
            prompt_ids = tuple(prompt)
        # Text too: some tokenizers know tokens (of images, say) that the model has no row for.
        _check_ids(prompt_ids, self._limits.vocab_size, "prompt")
        params = self._definite(params, prompt_ids)
        eos_ids = () if params.ignore_eos else self._tokenizer.eos_ids
        eos_ids = tuple(token_id for token_id in eos_ids if token_id < self._limits.vocab_size)
        if params.grammar is not None and not eos_ids:
            raise GrammarError("this model has no token that ends an answer, which a grammar needs")
        # The prompt is the same for every choice: one of them scores it.
        unscored = msgspec.structs.replace(params, prompt_logprobs=None)
        messages = tuple(
            GenerateRequest(
                request_id=request_id,
                choice=choice,
                prompt_ids=prompt_ids,
                params=params if choice == 0 else unscored,
                stop_ids=tuple(dict.fromkeys((*eos_ids, *params.stop_token_ids))),
                priority=priority,
                arrival=now,
                deadline=None if timeout is None else now + timeout,
                cache_salt=cache_salt,
            )
            for choice in range(params.n)
        )
        return PreparedRequest(
            request_id, request_id if name is None else name, text, prompt_ids, params, messages, format
        )

    def _definite(self, params: SamplingParams, prompt_ids: tuple[int, ...]) -> SamplingParams:
        room = self._limits.max_model_len - len(prompt_ids)
        wanted = room if params.max_tokens is None else params.max_tokens
        if not prompt_ids:
            raise RequestError("the prompt is empty: send at least one token", "prompt")
        if room < 1 or wanted > room:
            asked = "" if params.max_tokens is None else f" and max_tokens asks for {wanted} more"
            raise ContextLengthError(
                f"This model's maximum context length is {self._limits.max_model_len} tokens; the prompt has"
                f" {len(prompt_ids)}{asked}. Shorten the prompt or lower max_tokens.",
                "prompt" if room < 1 else "max_tokens",
            )
        if params.min_tokens > wanted:
            raise RequestError(
                f"min_tokens asks for {params.min_tokens}, but there is room for {wanted} only", "min_tokens"
            )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return msgspec.structs.replace(params, max_tokens=wanted, seed=seed)


def check_params(params: SamplingParams, limits: Limits) -> None:
    """Refuse what is not a number, out of range, or more than the caps allow."""
    for name, (low, high) in NUMBERS.items():
        _check_number(name, getattr(params, name), low, high)
    if params.top_p == 0.0:
        raise RequestError("top_p must be above 0; for the best token only, set temperature to 0", "top_p")
    for name, (smallest, largest) in whole_numbers(limits).items():
        _check_integer(name, getattr(params, name), smallest, largest, optional=name in MAY_BE_NONE)
    _check_stops(params, limits)
    _check_entries("logit_bias", params.logit_bias, dict, limits.max_logit_bias)
    _check_ids(tuple(params.logit_bias), limits.vocab_size, "logit_bias")
    for value in params.logit_bias.values():
        _check_number("logit_bias", value, *LOGIT_BIAS)
    if params.grammar is not None:  # which was checked by `grammar.checker`, once for all prompts
        if not isinstance(params.grammar, GrammarSpec):
            raise GrammarError("grammar must be a GrammarSpec: a kind and a text")
        if params.min_tokens > 0 or params.ignore_eos:
            raise GrammarError("a grammar says where an answer may end: leave out min_tokens and ignore_eos")


def _check_stops(params: SamplingParams, limits: Limits) -> None:
    _check_entries("stop", params.stop, (tuple, list), limits.max_stop_strings)
    for stop in params.stop:
        if not isinstance(stop, str) or not 0 < len(stop.encode("utf-8", "replace")) <= limits.max_stop_bytes:
            raise RequestError(f"a stop string has 1 to {limits.max_stop_bytes} bytes", "stop")
    _check_entries("stop_token_ids", params.stop_token_ids, (tuple, list), limits.max_stop_token_ids)
    _check_ids(params.stop_token_ids, limits.vocab_size, "stop_token_ids")


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN is not in any range
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}", name)


def _check_integer(name: str, value: Any, low: int, high: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}", name)


def _check_ids(ids: Sequence[Any], vocab_size: int, name: str) -> None:
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise RequestError(f"{name}: token ids are whole numbers from 0 to {vocab_size - 1}", name)


def _check_entries(name: str, value: Any, kinds: type | tuple[type, ...], most: int) -> None:
    if not isinstance(value, kinds):
        wanted = "a dict of token id to number" if kinds is dict else "a tuple: write (x,) for a single one"
        raise RequestError(f"{name} must be {wanted}", name)
    num_entries = len(value)  # type: ignore[arg-type]
    if num_entries > most:
        raise RequestError(f"{name} has {num_entries} entries; at most {most} are allowed", name)
