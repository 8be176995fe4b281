"""The `octavo` object of a response: timings, cached tokens and what is needed to reproduce the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.frontend.output import Choice, RequestOutput
from octavo.protocol import PrefillChunk
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ExplainedParts:
    """What the object contains on request."""

    prompt: bool = False  # as text
    token_ids: bool = False  # of prompt and answer, with the logprobs of the answer if it has them


def explanation(
    results: Sequence[RequestOutput],
    tokenizer: Tokenizer | None,
    *,
    tokenise_seconds: float,
    num_restarts: int,
    shown: ExplainedParts,
) -> dict[str, Any]:
    """Return the object. Without a tokenizer it has no text of the prompt, the answer or the request."""
    return {
        "tokenise_seconds": round(tokenise_seconds, 6),
        "engine_restarts": num_restarts,
        "requests": [_explained(output, tokenizer, shown) for output in results],
    }


def _explained(output: RequestOutput, tokenizer: Tokenizer | None, shown: ExplainedParts) -> dict[str, Any]:
    explained: dict[str, Any] = {
        "seed": output.seed,
        "prompt_tokens": len(output.prompt_ids),
        "cached_tokens": output.num_cached,
        "first_miss": _first_miss(output, tokenizer),
        "choices": [
            {
                "queue_seconds": round(choice.timings.queue, 6),
                "prefill_seconds": round(choice.timings.prefill, 6),
                "prefill_chunks": [_chunk(chunk) for chunk in choice.timings.chunks],
                "prefill_chunks_left_out": choice.timings.num_chunks_left_out,
                "decode_seconds": round(choice.timings.decode, 6),
                "preemptions": choice.num_preemptions,
                "drafted_tokens": choice.num_drafted,
                "accepted_tokens": choice.num_accepted,
                "steps_passed_over": choice.timings.num_passed_over,
                **({} if tokenizer is None else {"stop_reason": choice.stop_reason}),
                "tokens": len(choice.token_ids),
                **({} if tokenizer is None or not shown.token_ids else _tokens(choice)),
            }
            for choice in output.choices
        ],
    }
    if tokenizer is not None and shown.token_ids:
        explained["prompt_token_ids"] = output.prompt_ids
    if tokenizer is not None and shown.prompt:
        explained["prompt"] = (
            tokenizer.decode(output.prompt_ids, skip_special_tokens=False)
            if output.prompt is None
            else output.prompt
        )
    return explained


def _tokens(choice: Choice) -> dict[str, Any]:
    ids: dict[str, Any] = {"token_ids": choice.token_ids}
    if choice.logprobs is None:
        return ids
    return ids | {
        "logprobs": [
            {"token_id": score.token_id, "logprob": score.logprob, "top": score.top}
            for score in choice.logprobs
        ]
    }


def _chunk(chunk: PrefillChunk) -> dict[str, Any]:
    return {"start": chunk.start, "tokens": chunk.num_tokens, "seconds": round(chunk.seconds, 6)}


def _first_miss(output: RequestOutput, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    """Return the first prompt token that had to be computed, or None if all were cached.

    Cached tokens may follow it: blocks that other sequences have computed in the meantime are reused.
    """
    chunks = output.timings.chunks
    position = chunks[0].start if chunks else output.num_cached
    if position >= len(output.prompt_ids):
        return None
    if tokenizer is None:
        return {"position": position}
    token_id = output.prompt_ids[position]
    return {"position": position, "token_id": token_id, "token": tokenizer.token_text(token_id)}
