"""The contents of an answer, in a form that is equal for a stream and for a body."""

import json
from dataclasses import dataclass, field

from attacker.wire import Reply
from data.json_types import Json, JsonObject


@dataclass
class ChoiceSeen:
    """What must be reproducible of one choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, list[Json]] = field(default_factory=dict)
    prompt_logprobs: Json = None
    finish_reasons: list[str] = field(default_factory=list)

    def add(self, choice: JsonObject) -> None:
        """Add a whole choice, or the next piece of a streamed one."""
        written = choice.get("message") or choice.get("delta") or choice
        self.text += written.get("text") or written.get("content") or ""
        self.token_ids += choice.get("token_ids") or []
        for name, values in (choice.get("logprobs") or {}).items():
            self.logprobs.setdefault(name, []).extend(values or [])
        self.prompt_logprobs = choice.get("prompt_logprobs") or self.prompt_logprobs
        if choice.get("finish_reason") is not None:
            self.finish_reasons.append(choice["finish_reason"])


@dataclass
class Answer:
    """The answer to one generation request. `num_ends` is the number of [DONE]; 1 for a body."""

    choices: dict[int, ChoiceSeen] = field(default_factory=dict)
    errors: list[JsonObject] = field(default_factory=list)
    num_ends: int = 0
    has_data_after_end: bool = False

    @property
    def problem(self) -> str | None:
        """Return how the answer violates the rule of one terminal event, if it does."""
        if self.num_ends != 1 or self.has_data_after_end:
            return f"{self.num_ends} times [DONE]{', with data after it' if self.has_data_after_end else ''}"
        if len(self.errors) > 1:
            return f"{len(self.errors)} error events"
        if self.errors:
            return None
        unfinished = [index for index, choice in self.choices.items() if len(choice.finish_reasons) != 1]
        if unfinished or not self.choices:
            return f"choices {unfinished} of {len(self.choices)} do not have exactly one finish reason"
        return None

    def add(self, content: JsonObject) -> None:
        if "error" in content:
            self.errors.append(content["error"])
        for choice in content.get("choices", ()):
            self.choices.setdefault(choice["index"], ChoiceSeen()).add(choice)


def is_stream(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").startswith("text/event-stream")


def answer_of(reply: Reply) -> Answer:
    """Return the answer in a complete reply with status 200."""
    answer = Answer()
    if not is_stream(reply):
        answer.num_ends = 1
        answer.add(reply.json)
        return answer
    for event in bytes(reply.body).split(b"\n\n"):
        data = event.removeprefix(b"data: ") if event.startswith(b"data: ") else b""
        if data and answer.num_ends:
            answer.has_data_after_end = True
        if data == b"[DONE]":
            answer.num_ends += 1
        elif data:
            answer.add(json.loads(data))
    return answer
