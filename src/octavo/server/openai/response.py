"""The parts that chat and completion responses share: common fields, usage and the frame of an event."""

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.frontend.output import RequestOutput
from octavo.server.generation import Generation
from octavo.server.http.sse import COMMENTS, COMMENTS_WITH_IDS, Framing, encode
from octavo.server.openai.schema import SamplingFields
from octavo.server.openai.timings import timings_of


def head(generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": generation.context.response_id,
        "object": kind,
        "created": generation.context.created,
        "model": generation.context.model,
        "system_fingerprint": generation.pool.fingerprint,
    }


def usage(num_prompt: int, num_completion: int, num_cached: int, num_reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning},
    }


def usage_of(results: Iterable[RequestOutput], *, hidden: int = 0) -> dict[str, Any]:
    """Return the usage. A prompt counts once, whatever `n` is. `hidden` generated tokens are not counted.

    Drafts have names of their own: OpenAI's `rejected_prediction_tokens` are a part of `completion_tokens`.
    """
    outputs = list(results)
    choices = [choice for output in outputs for choice in output.choices]
    counted = usage(
        sum(len(output.prompt_ids) for output in outputs),
        sum(len(choice.token_ids) for choice in choices) - hidden,
        sum(output.num_cached for output in outputs),
        sum(choice.num_reasoning for choice in choices),
    )
    if num_drafted := sum(choice.num_drafted for choice in choices):
        num_accepted = sum(choice.num_accepted for choice in choices)
        counted["completion_tokens_details"] |= {
            "drafted_tokens": num_drafted,
            "accepted_tokens": num_accepted,
        }
    return counted


def extras(body: SamplingFields, generation: Generation) -> dict[str, Any]:
    """Return what a finished response contains only on request, because it depends on the server's load."""
    shown: dict[str, Any] = {}
    if body.wants_explanation:
        shown["octavo"] = generation.explanation()
    if body.timings_per_token:
        shown["timings"] = timings_of(generation.results.values())
    return shown


def framing(body: SamplingFields) -> Framing:
    return COMMENTS_WITH_IDS if body.includes_event_ids else COMMENTS


class ChunkFrame:
    """The constant part of the events of one response, encoded once.

    data: {"id": ..., "model": ..., "choices":[    CHOICE    ],"usage":null}
    `---------------- start ----------------´                `----- end ----´
    """

    def __init__(self, head: Mapping[str, Any], *, has_usage: bool) -> None:
        self._has_usage = has_usage
        self.start = b"data: " + encode(head)[:-1] + b',"choices":['
        self.end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def chunk(self, choice: bytes, *, usage: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """Return an event. `more` are fields of the event in addition to `choices`."""
        if usage is None and not more:
            return self.start + choice + self.end
        rest = ({"usage": usage} if self._has_usage or usage is not None else {}) | more
        return self.start + choice + b"]," + encode(rest)[1:] + b"\n\n"
