"""One request in flight, as the front end remembers it: enough to ask any engine for the rest."""

import msgspec

from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import Processed, RequestText
from octavo.frontend.updates import Recipient
from octavo.protocol import Failure, FailureCode, FinishReason, GenerateRequest, Timings, TokenOutput
from octavo.text.tokenizer import Tokenizer

# A request that kills engines must not do so for ever.
MOST_REPLAYS = 3  # without a new token in between
MOST_REPLAYS_IN_ALL = 50

ENGINE_LOST = Failure(
    FailureCode.ENGINE_FAILED, "the engine was restarted several times while it computed this request"
)

ENGINE_HUNG = Failure(
    FailureCode.ENGINE_FAILED,
    "the engine hung while it computed this request, and was replaced; do not send the same request again",
)


class InFlight:
    """Mutated by Hub only.

    By the law, the tokens after those already emitted are the ones that would have come: a request that is
    asked again with `resume_ids` goes on as if nothing had happened.
    """

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, recipient: Recipient) -> None:
        self.prepared = prepared
        self.request_id = prepared.request_id
        self.recipient = recipient
        self._text = RequestText(prepared, tokenizer)
        self._emitted = [list(message.resume_ids) for message in prepared.messages]
        self._num_cached = [0] * len(prepared.messages)  # as the first engine said
        self._ended: set[int] = set()  # choices whose last output has come
        self._stopped: set[int] = set()  # choices that the front end has ended, by a stop string or an abort
        self._num_scored = 0  # prompt logprobs that were passed on
        self._num_repeated = 0  # of them, those that the engine of now will tell again
        self._num_asked = 0
        self.is_asked = False  # the engine of now knows the request
        self.is_proven = False  # and has given a token for it, or its end
        self._unproven: set[int] = set()  # choices for which it has not
        self.blame = 0  # engines in a row that died while they knew it, and had given nothing for it

    @property
    def num_replays(self) -> int:
        return max(0, self._num_asked - 1)

    @property
    def is_stopped(self) -> bool:
        return len(self._stopped) == len(self._emitted)

    @property
    def is_fully_proven(self) -> bool:
        """The engine has given a token, or the end, for every choice that it was asked for."""
        return not self._unproven

    @property
    def num_left(self) -> int:
        """Choices that have not ended."""
        return len(self._left())

    def ask(self) -> tuple[list[GenerateRequest], list[TokenOutput]]:
        """What to ask an engine that does not know the request, and the outputs that no engine will give."""
        if self.blame > MOST_REPLAYS or self.num_replays >= MOST_REPLAYS_IN_ALL:
            return [], self.end(FinishReason.ERROR, ENGINE_LOST)
        self._num_asked += 1
        self.is_asked, self.is_proven = True, False
        self._num_repeated = self._num_scored
        left = self._left()
        again = [
            msgspec.structs.replace(message, resume_ids=tuple(self._emitted[message.choice]))
            for message in left
            if message.choice not in self._stopped
        ]
        self._unproven = {message.choice for message in again}
        return again, [_ended(m, FinishReason.ABORT) for m in left if m.choice in self._stopped]

    def process(self, output: TokenOutput) -> Processed:
        """Remember an output, be it of the engine or of ours, and make text of it."""
        processed = self._text.process(self._note(output))
        if processed.abort is not None:
            self.stop(processed.abort.choice)
        return processed

    def stop(self, choice: int | None) -> None:
        """The front end wants no more of a choice, or of any."""
        self._stopped |= set(range(len(self._emitted))) if choice is None else {choice}

    def lose_engine(self) -> None:
        if self.is_asked and not self.is_proven:
            self.blame += 1
        self.is_asked = False

    def end(self, reason: FinishReason, failure: Failure | None = None) -> list[TokenOutput]:
        """No engine will say more: the last outputs of all choices that have none."""
        return [_ended(message, reason, failure) for message in self._left()]

    @property
    def deadline(self) -> float | None:
        return self.prepared.messages[0].deadline

    def _note(self, output: TokenOutput) -> TokenOutput:
        """The result is without what was told before a restart."""
        choice, scores = output.choice, output.prompt_logprobs
        if output.token_ids or output.finish is not None:
            self._emitted[choice] += output.token_ids
            self.is_proven, self.blame = True, 0
            self._unproven.discard(choice)
        if output.finish is not None:
            self._ended.add(choice)
        if self._num_asked <= 1:
            self._num_scored += len(scores)
            self._num_cached[choice] = output.num_cached
            return output
        repeated = min(self._num_repeated, len(scores))
        self._num_repeated -= repeated
        self._num_scored += len(scores) - repeated
        return msgspec.structs.replace(
            output, prompt_logprobs=scores[repeated:], num_cached=self._num_cached[choice]
        )

    def _left(self) -> list[GenerateRequest]:
        return [message for message in self.prepared.messages if message.choice not in self._ended]


def _ended(message: GenerateRequest, reason: FinishReason, failure: Failure | None = None) -> TokenOutput:
    return TokenOutput(
        request_id=message.request_id,
        choice=message.choice,
        finish=reason,
        timings=Timings(0.0, 0.0, 0.0),
        failure=failure,
    )
