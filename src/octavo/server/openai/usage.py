"""What a request has used, counted in token ids, and the explanation that is given on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from octavo.frontend.output import RequestOutput
from octavo.protocol import PrefillChunk

if TYPE_CHECKING:
    from octavo.server.generation import Generation


def usage(num_prompt: int, num_completion: int, num_cached: int, num_reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning},
    }


def usage_of(results: Iterable[RequestOutput], *, hidden: int = 0) -> dict[str, Any]:
    """A prompt counts once, however many answers it gets. `hidden` tokens were generated for nobody."""
    outputs = list(results)
    return usage(
        sum(len(output.prompt_ids) for output in outputs),
        sum(len(choice.token_ids) for output in outputs for choice in output.choices) - hidden,
        sum(output.num_cached for output in outputs),
        sum(choice.num_reasoning for output in outputs for choice in output.choices),
    )


def explanation(generation: Generation, *, has_words: bool = True) -> dict[str, Any]:
    """The `octavo` block: where the time went, what the cache gave, and how to have the answer again.

    Without words, nothing of the prompt, the answer or what the client wrote is in it.
    """
    return {
        "tokenise_seconds": round(generation.tokenise_seconds, 6),
        "engine_restarts": generation.num_restarts,
        "requests": [
            _explained(generation, generation.results[index], has_words)
            for index in sorted(generation.results)
        ],
    }


def _explained(generation: Generation, output: RequestOutput, has_words: bool) -> dict[str, Any]:
    explained: dict[str, Any] = {
        "seed": output.seed,
        "prompt_tokens": len(output.prompt_ids),
        "cached_tokens": output.num_cached,
        "first_miss": _first_miss(generation, output, has_words),
        "choices": [
            {
                "queue_seconds": round(choice.timings.queue, 6),
                "prefill_seconds": round(choice.timings.prefill, 6),
                "prefill_chunks": [_chunk(chunk) for chunk in choice.timings.chunks],
                "prefill_chunks_left_out": choice.timings.num_chunks_left_out,
                "decode_seconds": round(choice.timings.decode, 6),
                "preemptions": choice.num_preemptions,
                **({"stop_reason": choice.stop_reason} if has_words else {}),
                "tokens": len(choice.token_ids),
            }
            for choice in output.choices
        ],
    }
    if has_words and generation.asked.fields.wants_prompt_shown:
        tokenizer = generation.state.model.tokenizer
        explained["prompt"] = (
            tokenizer.decode(output.prompt_ids, skip_special_tokens=False)
            if output.prompt is None
            else output.prompt
        )
    return explained


def _chunk(chunk: PrefillChunk) -> dict[str, Any]:
    return {"start": chunk.start, "tokens": chunk.num_tokens, "seconds": round(chunk.seconds, 6)}


def _first_miss(generation: Generation, output: RequestOutput, has_words: bool) -> dict[str, Any] | None:
    """The first token of the prompt that had to be computed. Pages that others have computed meanwhile can
    be found behind it, so that what was cached need not all lie before it."""
    chunks = output.timings.chunks
    position = chunks[0].start if chunks else output.num_cached
    if position >= len(output.prompt_ids):
        return None
    if not has_words:
        return {"position": position}
    token_id = output.prompt_ids[position]
    return {
        "position": position,
        "token_id": token_id,
        "token": generation.state.model.tokenizer.token_text(token_id),
    }
