"""Encode an answer as a message of the Anthropic API, or as the events of one."""

from collections.abc import Sequence
from typing import Any

from octavo.frontend.answer_order import AnswerOrder
from octavo.frontend.output import Choice, StreamDelta
from octavo.server.anthropic.blocks import BlockEvents, blocks_of
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.generation import Generation, raise_if_failed
from octavo.server.http.sse import Framing, named_event


class MessagesAnswer:
    """Encodes the output of one generation, which has one choice."""

    def __init__(self, body: MessagesRequest, framing: Framing, generation: Generation) -> None:
        self.framing = framing
        self._body = body
        self._generation = generation
        self._has_thinking = body.thinking is None or body.thinking.display != "omitted"
        self._order = AnswerOrder()
        self._blocks = BlockEvents(has_thinking=self._has_thinking)
        self._has_started = False

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        return ((delta, self._events(delta)),)

    def _events(self, delta: StreamDelta) -> bytes:
        """The message starts with the first delta, when it is known how much of the prompt was cached."""
        raise_if_failed(delta)
        events = b"" if self._has_started else self._start(delta.num_cached)
        if delta.reasoning:
            events += self._blocks.thinking(delta.reasoning)
        is_last = delta.finish_reason is not None
        return events + self._blocks.parts(self._order.add(delta.text, delta.calls, is_last=is_last))

    def encode_end(self) -> bytes:
        choice = self._choice
        reason, stop_sequence = self._stop_reason(choice)
        ended = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop_sequence, "stop_details": None},
            "usage": self._final_usage(choice),
        }
        if self._body.wants_explanation:
            ended["octavo"] = self._generation.explanation()
        return (
            self._blocks.end()
            + named_event("message_delta", ended)
            + named_event("message_stop", {"type": "message_stop"})
        )

    def full_body(self) -> dict[str, Any]:
        choice = self._choice
        reason, stop_sequence = self._stop_reason(choice)
        message = self._message(blocks_of(choice, has_thinking=self._has_thinking)) | {
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "usage": self._final_usage(choice),
        }
        if self._body.wants_explanation:
            message["octavo"] = self._generation.explanation()
        return message

    @property
    def _choice(self) -> Choice:
        (output,) = self._generation.results.values()
        (choice,) = output.choices
        return choice

    def _start(self, num_cached: int) -> bytes:
        self._has_started = True
        message = self._message([]) | {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(num_cached, 0),
        }
        return named_event("message_start", {"type": "message_start", "message": message})

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        context = self._generation.context
        return {
            "id": context.response_id,
            "type": "message",
            "role": "assistant",
            "model": context.model,
            "content": content,
            "stop_details": None,  # of answers that Anthropic's servers refuse
        }

    def _usage(self, num_cached: int, num_output: int) -> dict[str, Any]:
        (prepared,) = self._generation.prepared
        return {
            "input_tokens": len(prepared.prompt_ids) - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": num_output,
        }

    def _final_usage(self, choice: Choice) -> dict[str, Any]:
        (output,) = self._generation.results.values()
        details = {"thinking_tokens": choice.num_reasoning}
        return self._usage(output.num_cached, len(choice.token_ids)) | {"output_tokens_details": details}

    def _stop_reason(self, choice: Choice) -> tuple[str, str | None]:
        """Return `stop_reason` and `stop_sequence`."""
        if choice.finish_reason == "length":
            (prepared,) = self._generation.prepared
            is_cut = prepared.params.max_tokens != self._body.max_tokens  # by the context
            return "model_context_window_exceeded" if is_cut else "max_tokens", None
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        return "tool_use" if choice.calls else "end_turn", None
