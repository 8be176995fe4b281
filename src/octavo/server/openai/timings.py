"""The `timings` object, as the server of llama.cpp has it: applications show speeds from it."""

from collections.abc import Iterable
from typing import Any

from octavo.frontend.output import RequestOutput


def timings_of(results: Iterable[RequestOutput]) -> dict[str, Any]:
    """Return the object. Prompts and choices are computed together, so their times are not added up.

    `prompt_n` is without the tokens from the cache, which are `cache_n`. Time in the queue is not included.
    """
    outputs = list(results)
    choices = [choice for output in outputs for choice in output.choices]
    num_cached = sum(output.num_cached for output in outputs)
    num_prompt = sum(len(output.prompt_ids) for output in outputs) - num_cached
    shown: dict[str, Any] = {
        "cache_n": num_cached,
        **_speed("prompt", num_prompt, max((choice.timings.prefill for choice in choices), default=0.0)),
        **_speed(
            "predicted",
            sum(len(choice.token_ids) for choice in choices),
            max((choice.timings.decode for choice in choices), default=0.0),
        ),
    }
    if num_drafted := sum(choice.num_drafted for choice in choices):
        num_accepted = sum(choice.num_accepted for choice in choices)
        shown |= {"draft_n": num_drafted, "draft_n_accepted": num_accepted}
    return shown


def _speed(name: str, num_tokens: int, seconds: float) -> dict[str, Any]:
    """Return the four fields of a phase. Where nothing was measured, a speed is 0: JSON has no infinity."""
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": round(seconds * 1e3, 3),
        f"{name}_per_token_ms": round(seconds * 1e3 / num_tokens, 3) if num_tokens else 0.0,
        f"{name}_per_second": round(num_tokens / seconds, 3) if seconds > 0 else 0.0,
    }
