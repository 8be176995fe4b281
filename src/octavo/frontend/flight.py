"""A request under way, as the front end remembers it: enough to ask a new engine for the rest."""

import msgspec

from octavo.frontend.intake import PreparedRequest
from octavo.protocol import FinishReason, GenerateRequest, Timings, TokenOutput

MOST_REPLAYS = 3  # without a new token in between: a request that kills engines must not do so for ever


class Flight:
    """Mutated by EngineService only.

    By the law, the tokens after those already emitted are the ones that would have come: a request that is
    asked again with `resume_ids` goes on as if nothing had happened.
    """

    def __init__(self, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self._emitted: list[list[int]] = [[] for _ in prepared.messages]
        self._ended: set[int] = set()  # choices whose last output has come
        self._stopped: set[int] = set()  # choices that the front end has ended, by a stop string or an abort
        self._num_scored = 0  # prompt logprobs that were passed on
        self._num_repeated = 0  # of them, those that a new engine will tell again
        self.was_sent = False  # to an engine, which may be dead by now
        self.num_replays = 0
        self._replays_without_progress = 0

    def note(self, output: TokenOutput) -> TokenOutput:
        """Remember an output of the engine; the result is without what was told before a restart."""
        self._emitted[output.choice] += output.token_ids
        if output.token_ids:
            self._replays_without_progress = 0
        if output.finish is not None:
            self._ended.add(output.choice)
        scores = output.prompt_logprobs
        if not scores:
            return output
        repeated = min(self._num_repeated, len(scores))
        self._num_repeated -= repeated
        self._num_scored += len(scores) - repeated
        return msgspec.structs.replace(output, prompt_logprobs=scores[repeated:])

    def stop(self, choice: int | None) -> None:
        """The front end wants no more of a choice, or of any."""
        self._stopped |= set(range(len(self._emitted))) if choice is None else {choice}

    def replay(self) -> tuple[list[GenerateRequest], list[TokenOutput]]:
        """What to ask a new engine, and the outputs that no engine will give any more."""
        if self.was_sent:
            self.num_replays += 1
            self._replays_without_progress += 1
        self.was_sent = True
        self._num_repeated = self._num_scored
        left = [m for m in self.prepared.messages if m.choice not in self._ended]
        if self._replays_without_progress > MOST_REPLAYS:
            return [], [_ended(m, FinishReason.ERROR, ENGINE_LOST) for m in left]
        again = [
            msgspec.structs.replace(message, resume_ids=tuple(self._emitted[message.choice]))
            for message in left
            if message.choice not in self._stopped
        ]
        stopped = [_ended(m, FinishReason.ABORT) for m in left if m.choice in self._stopped]
        return again, stopped

    def give_up(self, reason: str) -> list[TokenOutput]:
        """There will be no engine any more."""
        return [
            _ended(m, FinishReason.ERROR, reason)
            for m in self.prepared.messages
            if m.choice not in self._ended
        ]


ENGINE_LOST = "the engine was restarted several times while it computed this request"


def _ended(message: GenerateRequest, reason: FinishReason, error: str | None = None) -> TokenOutput:
    return TokenOutput(
        request_id=message.request_id,
        choice=message.choice,
        finish=reason,
        timings=Timings(0.0, 0.0, 0.0),
        error=error,
    )
