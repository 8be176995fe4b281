"""The one door: everything a client sends is checked, tokenised and made definite here.

What passes will not fail in the engine: numbers are finite and in range, ids exist, the length fits, and
the seed is set, so that from here on the response is a function of the request.
"""

import secrets
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import msgspec

from octavo.checks import check_ids, check_integer, check_number
from octavo.dialect.reader import AnswerFormat
from octavo.errors import ContextLengthError, GrammarError, RequestError
from octavo.protocol import MAY_BE_NONE, WHOLE_NUMBERS, GenerateRequest, GrammarSpec, SamplingParams
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


TIMEOUT = (1e-9, 1e9)
PRIORITY = (-(1 << 31), 1 << 31)


def whole_numbers(limits: Limits) -> dict[str, tuple[int, int]]:
    """The whole numbers of `SamplingParams`, within these limits."""
    most = {
        "n": limits.max_n,
        "min_tokens": limits.max_model_len,
        "logprobs": limits.max_logprobs,
        "prompt_logprobs": limits.max_logprobs,
    }
    return {name: (low, most.get(name, high)) for name, (low, high) in WHOLE_NUMBERS.items()}


@dataclass(frozen=True)
class FieldGrammar:
    """A grammar, and what the caller calls the field that it came from."""

    field: str
    spec: GrammarSpec


@dataclass(frozen=True)
class PromptTask:
    """What to generate from one prompt: a completion as it was asked for, or a chat (`chat.compose`)."""

    prompt: Prompt
    params: SamplingParams
    add_special_tokens: bool = True
    text: str | None = None  # of which a prompt of ids was made, if it was
    format: AnswerFormat | None = None  # None: an answer is text
    # Whoever has the task prepared has these checked before, by `GrammarChecker`, in order.
    grammars: tuple[FieldGrammar, ...] = ()


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

    def check(self, params: SamplingParams, *, priority: int = 0, timeout: float | None = None) -> None:
        """What can be checked before there is a prompt."""
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
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> PreparedRequest:
        """`timeout` seconds after `arrival`, or `now`, it is over."""
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
        # Text too: some tokenizers know tokens (of images, say) that the model has no row for.
        check_ids("prompt", prompt_ids, self._limits.vocab_size)
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
                deadline=None if timeout is None else (now if arrival is None else arrival) + timeout,
                cache_salt=cache_salt,
            )
            for choice in range(params.n)
        )
        return PreparedRequest(
            request_id, request_id if name is None else name, text, prompt_ids, params, messages, task.format
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


def check_length(num_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
    """Whether the model can answer a prompt of so many tokens at all."""
    if num_tokens >= max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens; the prompt has"
            f" {'at least ' if at_least else ''}{num_tokens}. Shorten the prompt or lower max_tokens.",
            "prompt",
        )


def check_params(params: SamplingParams, limits: Limits) -> None:
    """Refuse what this model does not have, and more than the limits allow. `SamplingParams` has checked the
    rest itself."""
    for name, (smallest, largest) in whole_numbers(limits).items():
        check_integer(name, getattr(params, name), smallest, largest, optional=name in MAY_BE_NONE)
    _check_length("stop", params.stop, limits.max_stop_strings)
    for stop in params.stop:
        if len(stop.encode("utf-8", "replace")) > limits.max_stop_bytes:
            raise RequestError(f"a stop string has 1 to {limits.max_stop_bytes} bytes", "stop")
    _check_length("stop_token_ids", params.stop_token_ids, limits.max_stop_token_ids)
    check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_length("logit_bias", params.logit_bias, limits.max_logit_bias)
    check_ids("logit_bias", params.logit_bias, limits.vocab_size)


def _check_length(name: str, values: Sized, most: int) -> None:
    if len(values) > most:
        raise RequestError(f"{name} has {len(values)} entries; at most {most} are allowed", name)
