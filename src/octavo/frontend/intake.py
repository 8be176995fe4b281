"""Intake: validate and tokenise everything a client sends, and fill in defaults.

An accepted request does not fail in the engine: numbers are finite and in range, ids exist, and the length
fits. The seed is set, so from here on the response is a function of the request.
"""

import secrets
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import msgspec

from octavo.checks import check_ids, check_integer, check_number
from octavo.dialect.reader import AnswerFormat
from octavo.errors import ContextLengthError, GrammarError, RequestError
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.protocol import MAY_BE_NONE, WHOLE_NUMBERS, GenerateRequest, GrammarSpec, SamplingParams
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request."""

    vocab_size: int
    max_model_len: int
    max_n: int = 128
    max_stop_strings: int = 16
    max_stop_bytes: int = 256
    max_logprobs: int = 20
    max_logit_bias: int = 1024
    max_stop_token_ids: int = 1024


TIMEOUT = (1e-9, 1e9)
PRIORITY = (-(1 << 31), 1 << 31)


def whole_numbers(limits: RequestLimits) -> dict[str, tuple[int, int]]:
    """Return the bounds of the integer fields of `SamplingParams` under these limits."""
    limit = {
        "n": limits.max_n,
        "min_tokens": limits.max_model_len,
        "logprobs": limits.max_logprobs,
        "prompt_logprobs": limits.max_logprobs,
    }
    return {name: (low, limit.get(name, high)) for name, (low, high) in WHOLE_NUMBERS.items()}


@dataclass(frozen=True)
class FieldGrammar:
    """A grammar, and the caller's name for the field it came from."""

    field: str
    spec: GrammarSpec


@dataclass(frozen=True)
class PromptTask:
    """What to generate from one prompt: a completion, or a chat made by `chat.compose`."""

    prompt: Prompt
    params: SamplingParams
    add_special_tokens: bool = True
    text: str | None = None  # if `prompt` is token ids: the text they were made from, if known
    format: AnswerFormat | None = None  # None: plain text
    # The caller of `Intake.prepare` checks these first, in order, with `GrammarChecker`.
    grammars: tuple[FieldGrammar, ...] = ()


@dataclass(frozen=True)
class PreparedRequest:
    """A validated request: its prompt as ids, its parameters complete, one message per choice."""

    request_id: str  # the engine's id, which is unique
    name: str  # the caller's id, which may be reused
    prompt: str | None  # None if the client sent token ids
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    messages: tuple[GenerateRequest, ...]
    format: AnswerFormat | None = None  # None: plain text


class Intake:
    def __init__(self, tokenizer: Tokenizer, limits: RequestLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def check(self, params: SamplingParams, *, priority: int = 0, timeout: float | None = None) -> None:
        """Check what does not depend on the prompt."""
        check_params(params, self._limits)
        check_integer("priority", priority, *PRIORITY)
        check_number("timeout", 1.0 if timeout is None else timeout, *TIMEOUT)

    def prepare(
        self,
        request_id: str,
        task: PromptTask,
        *,
        now: float,
        arrival: float | None = None,
        name: str | None = None,
        priority: int = 0,
        tenant: Tenant = ONLY_TENANT,
        rank: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> PreparedRequest:
        """Return the validated request. Its deadline is `timeout` seconds after `arrival` (default `now`)."""
        prompt, params = task.prompt, task.params
        self.check(params, priority=priority, timeout=timeout)
        for field, value in (("cache_salt", cache_salt), ("request_id", name or "")):
            if not isinstance(value, str):
                raise RequestError(f"{field} must be a string", field)
        text = prompt if isinstance(prompt, str) else task.text
        if isinstance(prompt, str):
            prompt_ids = tuple(self._tokenizer.encode(prompt, add_special_tokens=task.add_special_tokens))
        else:
            prompt_ids = tuple(prompt)
        check_length(len(prompt_ids), self._limits.max_model_len)
        # Also for text: some tokenizers have tokens (for images, say) that the model has no row for.
        check_ids("prompt", prompt_ids, self._limits.vocab_size)
        params = self._with_defaults(params, prompt_ids)
        eos_ids = () if params.ignore_eos else self._tokenizer.eos_ids
        eos_ids = tuple(token_id for token_id in eos_ids if token_id < self._limits.vocab_size)
        if params.grammar is not None and not eos_ids:
            raise GrammarError("grammars need an end-of-sequence token, and this model has none")
        # The prompt is the same for every choice, so only the first one scores it.
        unscored = msgspec.structs.replace(params, prompt_logprobs=None)
        messages = tuple(
            GenerateRequest(
                request_id=request_id,
                choice=choice,
                prompt_ids=prompt_ids,
                params=params if choice == 0 else unscored,
                stop_ids=tuple(dict.fromkeys((*eos_ids, *params.stop_token_ids))),
                priority=priority,
                tenant=tenant.name,
                weight=tenant.weight,
                rank=rank,
                arrival=now,
                deadline=None if timeout is None else (now if arrival is None else arrival) + timeout,
                cache_salt=cache_salt,
            )
            for choice in range(params.n)
        )
        return PreparedRequest(
            request_id, request_id if name is None else name, text, prompt_ids, params, messages, task.format
        )

    def _with_defaults(self, params: SamplingParams, prompt_ids: tuple[int, ...]) -> SamplingParams:
        room = self._limits.max_model_len - len(prompt_ids)
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if not prompt_ids:
            raise RequestError("the prompt is empty: send at least one token", "prompt")
        if room < 1 or max_tokens > room:
            more = "" if params.max_tokens is None else f" and max_tokens asks for {max_tokens} more"
            raise ContextLengthError(
                f"This model's maximum context length is {self._limits.max_model_len} tokens; the prompt has"
                f" {len(prompt_ids)}{more}. Shorten the prompt or lower max_tokens.",
                "prompt" if room < 1 else "max_tokens",
            )
        if params.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens is {params.min_tokens}, but max_tokens or the context allows only {max_tokens}",
                "min_tokens",
            )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return msgspec.structs.replace(params, max_tokens=max_tokens, seed=seed)


def check_length(num_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
    """Raise ContextLengthError if a prompt of `num_tokens` leaves no room for an answer."""
    if num_tokens >= max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens; the prompt has"
            f" {'at least ' if at_least else ''}{num_tokens}. Shorten the prompt or lower max_tokens.",
            "prompt",
        )


def check_params(params: SamplingParams, limits: RequestLimits) -> None:
    """Reject token ids outside the vocabulary and values beyond the limits.

    `SamplingParams` has already checked the rest.
    """
    for name, (smallest, largest) in whole_numbers(limits).items():
        check_integer(name, getattr(params, name), smallest, largest, optional=name in MAY_BE_NONE)
    _check_length("stop", params.stop, limits.max_stop_strings)
    for stop in params.stop:
        if len(stop.encode("utf-8", "replace")) > limits.max_stop_bytes:
            raise RequestError(f"a stop string must have 1 to {limits.max_stop_bytes} bytes", "stop")
    _check_length("stop_token_ids", params.stop_token_ids, limits.max_stop_token_ids)
    check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_length("logit_bias", params.logit_bias, limits.max_logit_bias)
    check_ids("logit_bias", params.logit_bias, limits.vocab_size)


def _check_length(name: str, values: Sized, limit: int) -> None:
    if len(values) > limit:
        raise RequestError(f"{name} has {len(values)} entries; at most {limit} are allowed", name)
