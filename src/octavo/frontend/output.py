"""Convert the engine's tokens to text and results: detokenising, stop strings, choices."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.dialect.pieces import (
    CallArguments,
    CallStart,
    Other,
    ParsedCall,
    Reasoning,
    joined,
)
from octavo.frontend.choice_text import CallIds, ChoiceText
from octavo.frontend.intake import PreparedRequest
from octavo.protocol import Abort, FailureCode, FinishReason, Timings, TokenLogprob, TokenOutput
from octavo.text.tokenizer import Tokenizer


class StreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one choice. The last delta of a choice has `finish_reason`."""

    request_id: str
    choice: int
    text: str
    reasoning: str = ""
    calls: tuple[CallStart | CallArguments, ...] = ()
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    num_cached: int = 0  # prompt tokens whose KV was found in the prefix cache
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # with the first token of choice 0, if requested
    error: str | None = None  # with the finish reason `error`: a message for people
    error_code: FailureCode | None = None  # with the finish reason `error`: a code for programs


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    reasoning: str | None = None  # None if the model wrote none
    calls: tuple[ParsedCall, ...] = ()
    num_reasoning: int = 0  # tokens
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None  # None if not requested
    finish_reason: str
    stop_reason: str | int | None = None  # the stop string or stop token that ended it
    timings: Timings
    num_preemptions: int = 0
    num_drafted: int = 0  # tokens that were drafted for it
    num_accepted: int = 0  # of these, the tokens that the model drew, too
    error: str | None = None  # with the finish reason `error`: a message for people
    error_code: FailureCode | None = None  # with the finish reason `error`: a code for programs
    parsed: Any = None  # with a schema: the answer as an object; None if it was cut off or has calls


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request."""

    request_id: str
    prompt: str | None
    prompt_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None  # of prompt tokens 1, 2, ...; None if not requested
    choices: tuple[Choice, ...]
    num_cached: int  # prompt tokens whose KV was found in the prefix cache
    seed: int  # the same request with this seed returns the same result

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def reasoning(self) -> str | None:
        return self.choices[0].reasoning

    @property
    def calls(self) -> tuple[ParsedCall, ...]:
        return self.choices[0].calls

    @property
    def parsed(self) -> Any:
        return self.choices[0].parsed

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def timings(self) -> Timings:
        return self.choices[0].timings


class ChoiceState:
    """One unfinished choice. Mutated by RequestText only."""

    def __init__(
        self, tokenizer: Tokenizer, request: PreparedRequest, choice: int, call_ids: CallIds
    ) -> None:
        self.text = ChoiceText(tokenizer, request, choice, call_ids)
        self.pieces: list[str] = []  # content
        self.others: list[Other] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.stop_reason: str | int | None = None
        self.finish: FinishReason | None = None
        self.last: TokenOutput | None = None  # the engine's terminal output


class Processed(msgspec.Struct, frozen=True):
    delta: StreamDelta | None = None
    finished: RequestOutput | None = None
    abort: Abort | None = None  # to send to the engine, because a stop string ended the choice
    before: StreamDelta | None = None  # comes before `delta`: see `RequestText`


class RequestText:
    """The text of one unfinished request. Owned by its `InFlightRequest`."""

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, split_at: Sequence[int] = ()) -> None:
        """`split_at` are numbers of tokens, one per choice: no delta has tokens before and after them."""
        self._prepared = prepared
        self._split_at = split_at
        call_ids = CallIds(prepared)
        self._choices = [
            ChoiceState(tokenizer, prepared, choice, call_ids) for choice in range(len(prepared.messages))
        ]
        self._prompt_logprobs: list[TokenLogprob] = []
        self._num_cached = 0

    def process(self, output: TokenOutput) -> Processed:
        num_before = 0
        if self._split_at:
            num_before = self._split_at[output.choice] - len(self._choices[output.choice].token_ids)
        if not 0 < num_before < len(output.token_ids):
            return self._process(output)
        ids, logprobs, replace = output.token_ids, output.logprobs, msgspec.structs.replace
        first = self._process(
            replace(output, token_ids=ids[:num_before], logprobs=logprobs[:num_before], finish=None)
        )
        rest = self._process(
            replace(output, token_ids=ids[num_before:], logprobs=logprobs[num_before:], prompt_logprobs=())
        )
        abort = None if output.finish is not None else first.abort or rest.abort
        return Processed(rest.delta, rest.finished, abort, before=first.delta)

    def _process(self, output: TokenOutput) -> Processed:
        self._prompt_logprobs += output.prompt_logprobs
        if output.choice == 0:
            self._num_cached = output.num_cached
        choice = self._choices[output.choice]
        abort = None
        delta = None
        if choice.finish is None:
            delta = self._grow(choice, output)
            if choice.text.is_ended and output.finish is None:
                abort = Abort(output.request_id, output.choice)
        finished = None
        if output.finish is not None:
            choice.last = output
            if all(other.last is not None for other in self._choices):
                finished = self._result()
        return Processed(delta, finished, abort)

    def _grow(self, choice: ChoiceState, output: TokenOutput) -> StreamDelta | None:
        """Add the output's tokens to the choice, up to the one that ends its text."""
        stop_token = output.finish is FinishReason.STOP and output.token_ids
        pieces: list[str] = []
        used = 0
        for index, token in enumerate(output.token_ids):
            used += 1
            if stop_token and index == len(output.token_ids) - 1:
                choice.stop_reason = token
                if not self._prepared.params.include_stop:
                    break  # the stop token counts as a token, but is not part of the text
            may_stop = len(choice.token_ids) + used >= self._prepared.params.min_tokens
            pieces.append(choice.text.push(token, may_stop=may_stop))
            if choice.text.is_ended:
                break
        if output.finish is not None and not choice.text.is_ended:
            pieces.append(choice.text.finish())
        if choice.text.is_ended:
            choice.stop_reason = choice.text.stop_string
            choice.finish = FinishReason.STOP
        else:
            choice.finish = output.finish
        is_first = output.choice == 0 and not choice.token_ids and used
        choice.token_ids += output.token_ids[:used]
        choice.logprobs += output.logprobs[:used]
        text = "".join(pieces)
        choice.pieces.append(text)
        others = choice.text.take_others()
        choice.others += others
        if not used and choice.finish is None:
            return None
        return StreamDelta(
            request_id=self._prepared.name,
            choice=output.choice,
            text=text,
            reasoning="".join([one.text for one in others if isinstance(one, Reasoning)]) if others else "",
            calls=tuple([one for one in others if not isinstance(one, Reasoning)]) if others else (),
            token_ids=output.token_ids[:used],
            logprobs=output.logprobs[:used],
            finish_reason=None if choice.finish is None else choice.finish.value,
            num_cached=output.num_cached,
            prompt_logprobs=tuple(self._prompt_logprobs) if is_first else (),
            error=None if output.failure is None else output.failure.message,
            error_code=None if output.failure is None else output.failure.code,
        )

    def _result(self) -> RequestOutput:
        prepared = self._prepared
        params = prepared.params
        assert params.seed is not None
        return RequestOutput(
            request_id=prepared.name,
            prompt=prepared.prompt,
            prompt_ids=prepared.prompt_ids,
            prompt_logprobs=None if params.prompt_logprobs is None else tuple(self._prompt_logprobs),
            choices=tuple(
                _choice(index, choice, has_logprobs=params.logprobs is not None)
                for index, choice in enumerate(self._choices)
            ),
            num_cached=self._num_cached,
            seed=params.seed,
        )


def _choice(index: int, choice: ChoiceState, *, has_logprobs: bool) -> Choice:
    last = choice.last
    assert last is not None
    assert last.timings is not None
    assert choice.finish is not None
    others = joined(choice.others)
    return Choice(
        index=index,
        text="".join(choice.pieces),
        reasoning=others.reasoning,
        calls=others.calls,
        num_reasoning=choice.text.num_reasoning,
        token_ids=tuple(choice.token_ids),
        logprobs=tuple(choice.logprobs) if has_logprobs else None,
        finish_reason=choice.finish.value,
        stop_reason=choice.stop_reason,
        timings=last.timings,
        num_preemptions=last.num_preemptions,
        num_drafted=last.num_drafted,
        num_accepted=last.num_accepted,
        error=None if last.failure is None else last.failure.message,
        error_code=None if last.failure is None else last.failure.code,
    )
