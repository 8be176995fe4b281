"""The fields of `SamplingParams`, for helpers that pass them on."""

from typing import TypedDict

from octavo.protocol import GrammarSpec


class SamplingFields(TypedDict, total=False):
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    min_tokens: int
    max_tokens: int | None
    stop: tuple[str, ...]
    include_stop: bool
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    seed: int | None
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    grammar: GrammarSpec | None
