"""One in-flight request, with all that the front end needs to replay it to another engine."""

from array import array
from collections.abc import Callable, Sequence

import msgspec

from octavo.fleet.cost import RequestSize
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import Processed, RequestText
from octavo.frontend.updates import Recipient
from octavo.link.heartbeat import request_number
from octavo.protocol import (
    UNKNOWN_POSITION,
    Failure,
    FailureCode,
    FinishReason,
    GenerateRequest,
    Timings,
    TokenOutput,
)
from octavo.text.tokenizer import Tokenizer

# Limits on how often one request may be the cause of an engine's end.
MAX_REPLAYS = 3  # in a row, without a new token
MAX_TOTAL_REPLAYS = 50

# Engines in a row that a request may have killed, before any output for it. Then it is a suspect.
SUSPECT_AFTER = 2

ENGINE_LOST = Failure(
    FailureCode.ENGINE_FAILED, "the engine was restarted several times while computing this request"
)

ENGINE_HUNG = Failure(
    FailureCode.ENGINE_FAILED,
    "the engine hung while computing this request and was restarted; do not send the same request again",
)


class InFlightRequest:
    """Mutated by Hub only.

    Generation is deterministic: a request that is replayed with its emitted tokens as `resume_ids` continues
    with exactly the tokens that the first engine would have produced. Each replay is a new attempt. Outputs
    of earlier attempts may still arrive, and are not the next part of the answer: see `expects`.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: Tokenizer,
        recipient: Recipient,
        *,
        split_at: Sequence[int] = (),
    ) -> None:
        """`split_at`: see `RequestText`."""
        self.prepared = prepared
        self.request_id = prepared.request_id
        self.recipient = recipient
        self._tokenizer = tokenizer
        self._text = RequestText(prepared, tokenizer, split_at)
        self._emitted = [list(message.resume_ids) for message in prepared.messages]
        self._num_cached = [0] * len(prepared.messages)  # as reported by the first engine
        self._ended: set[int] = set()  # choices whose last output was received
        self._stopped: set[int] = set()  # choices that the front end ended, by a stop string or an abort
        self._num_scored = 0  # prompt logprobs delivered so far
        self._num_repeated = 0  # of them, those that the current engine will send again
        self._num_sends = 0
        self._num_losses = 0  # engines that this request may have killed
        self._positions = [0] * len(prepared.messages)  # of the next output of each choice
        self._block_keys = array("Q")
        self.number = request_number(prepared.request_id)
        self.last_message = 0  # the position of its last message among those sent to the current engine
        self.replica: str | None = None  # the replica that it was sent to; None: it waits
        self.last_replica: str | None = None  # the replica that it was sent to before
        self.has_output = False  # the current engine has returned a token or a finish reason for it
        self._without_output: set[int] = set()  # choices for which the current engine has returned neither
        self.suspicion = 0  # engines in a row that this request may have killed, before any output for it

    def again(self, prepared: PreparedRequest, recipient: Recipient) -> "InFlightRequest":
        """Return a new request that is computed from its beginning."""
        return InFlightRequest(prepared, self._tokenizer, recipient)

    @property
    def attempt(self) -> int:
        return max(0, self._num_sends - 1)

    @property
    def is_suspect(self) -> bool:
        return self.suspicion >= SUSPECT_AFTER

    @property
    def is_stopped(self) -> bool:
        return len(self._stopped) == len(self._emitted)

    @property
    def has_all_outputs(self) -> bool:
        """Whether the engine has returned a token or a finish reason for every choice that was sent to it."""
        return not self._without_output

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt, and of the choice with the most tokens so far."""
        return len(self.prepared.messages[0].prompt_ids) + max(map(len, self._emitted))

    @property
    def num_generated(self) -> int:
        """Tokens of all choices so far."""
        return sum(map(len, self._emitted))

    @property
    def size(self) -> RequestSize:
        max_new_tokens = sum(message.params.max_tokens or 1 for message in self._unfinished())
        return RequestSize(self.num_tokens, max_new_tokens)

    def block_keys(self, keys_of: "Callable[[str, Sequence[int]], array[int]]") -> "array[int]":
        """Return the keys of the blocks of the prompt that an engine may have in its cache, computed once.

        For prompt logprobs, an engine computes the whole prompt.
        """
        if not self._block_keys and self.prepared.params.prompt_logprobs is None:
            first = self.prepared.messages[0]
            self._block_keys = keys_of(first.cache_salt, first.prompt_ids)
        return self._block_keys

    @property
    def num_unfinished(self) -> int:
        """The number of choices that have not ended."""
        return len(self._unfinished())

    @property
    def num_replay_tokens(self) -> int:
        """The tokens that another engine would have to compute, if it has none of them in its cache."""
        return sum(len(one.prompt_ids) + len(self._emitted[one.choice]) for one in self._unfinished())

    @property
    def is_recomputed(self) -> bool:
        """Whether the current engine is not the first one, and still computes the tokens so far."""
        return self.replica is not None and self.attempt > 0 and not self.has_all_outputs

    def is_paused_beside(self, replica: str) -> bool:
        """Whether it has left a replica and has not continued elsewhere."""
        return self.replica is None or (self.replica != replica and self.is_recomputed)

    def prepare_send(self, replica: str) -> tuple[list[GenerateRequest], list[TokenOutput]]:
        """Return the messages to send to a replica, and the last outputs of choices that are not sent."""
        if self.suspicion > MAX_REPLAYS or self._num_losses > MAX_TOTAL_REPLAYS:
            return [], self.end(FinishReason.ERROR, ENGINE_LOST)
        self._num_sends += 1
        self.replica, self.has_output = replica, False
        self._num_repeated = self._num_scored
        self._positions = [len(emitted) for emitted in self._emitted]
        unfinished = self._unfinished()
        messages = [
            msgspec.structs.replace(
                message, resume_ids=tuple(self._emitted[message.choice]), attempt=self.attempt
            )
            for message in unfinished
            if message.choice not in self._stopped
        ]
        self._without_output = {message.choice for message in messages}
        return messages, [_ended(m, FinishReason.ABORT) for m in unfinished if m.choice in self._stopped]

    def is_current(self, output: TokenOutput) -> bool:
        """Whether the output belongs to the latest attempt."""
        return output.attempt == self.attempt

    def expects(self, output: TokenOutput) -> bool:
        """Whether an output of the latest attempt is the next part of its choice: none is missing before it,
        and it has not been received before."""
        return output.position in (UNKNOWN_POSITION, self._positions[output.choice])

    def process(self, output: TokenOutput) -> Processed:
        """Record an output, from the engine or the front end, and convert it to text."""
        processed = self._text.process(self._record(output))
        if processed.abort is not None:
            self.stop(processed.abort.choice)
        return processed

    def stop(self, choice: int | None) -> None:
        """Mark one choice, or with None every choice, as ended by the front end."""
        self._stopped |= set(range(len(self._emitted))) if choice is None else {choice}

    def lose_engine(self, *, may_be_cause: bool, is_hang: bool = False) -> None:
        """Note that the replica no longer has the request, because its engine died or does not respond.

        A request that may be the cause is more suspect if it had no output. Output does not exclude that it
        hangs the engine at a later token.
        """
        if self.replica is not None and may_be_cause:
            self._num_losses += 1
            self.suspicion += is_hang or not self.has_output
        self.last_replica, self.replica = self.replica or self.last_replica, None

    def end(self, reason: FinishReason, failure: Failure | None = None) -> list[TokenOutput]:
        """Return a last output for every choice that has none, since no engine will send one."""
        return [_ended(message, reason, failure) for message in self._unfinished()]

    @property
    def deadline(self) -> float | None:
        return self.prepared.messages[0].deadline

    def _record(self, output: TokenOutput) -> TokenOutput:
        """Record the output and return it without the parts that were delivered before a restart."""
        choice, scores = output.choice, output.prompt_logprobs
        self._positions[choice] += len(output.token_ids) + len(scores)
        if output.token_ids or output.finish is not None:
            self._emitted[choice] += output.token_ids
            self.has_output, self.suspicion = True, 0
            self._without_output.discard(choice)
        if output.finish is not None:
            self._ended.add(choice)
        if self._num_sends <= 1:
            self._num_scored += len(scores)
            self._num_cached[choice] = output.num_cached
            return output
        repeated = min(self._num_repeated, len(scores))
        self._num_repeated -= repeated
        self._num_scored += len(scores) - repeated
        return msgspec.structs.replace(
            output, prompt_logprobs=scores[repeated:], num_cached=self._num_cached[choice]
        )

    def _unfinished(self) -> list[GenerateRequest]:
        return [message for message in self.prepared.messages if message.choice not in self._ended]


def _ended(message: GenerateRequest, reason: FinishReason, failure: Failure | None = None) -> TokenOutput:
    return TokenOutput(
        request_id=message.request_id,
        choice=message.choice,
        finish=reason,
        timings=Timings(0.0, 0.0, 0.0),
        failure=failure,
    )
