"""The fields of `SamplingParams`, for helpers that pass them on."""

from typing import TypedDict, Unpack

import msgspec

from octavo.protocol import GrammarSpec, SamplingParams


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


def unchecked_params(**fields: Unpack[SamplingFields]) -> SamplingParams:
    """Parameters that would be refused when they are made: to see that a worker survives them."""
    params = SamplingParams()
    for name, value in fields.items():
        msgspec.structs.force_setattr(params, name, value)
    return params
