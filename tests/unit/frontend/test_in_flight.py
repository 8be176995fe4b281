"""Whatever an engine sent before it died, replay gives the same result as an undisturbed run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.frontend.in_flight import ENGINE_LOST, MAX_REPLAYS, MAX_TOTAL_REPLAYS, InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.protocol import FinishReason, GenerateRequest, SamplingParams, TokenLogprob, TokenOutput
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import NOW, PROMPT, Inbox, ended, request, token


def token_at(request: GenerateRequest, position: int) -> int:
    """Return a token from a few letters, so that stop strings occur."""
    return 66 + hash((request.params.seed, request.choice, position)) % 3


def score(token: int, position: int) -> TokenLogprob:
    return TokenLogprob(token, -float(position), ((token, -float(position)),))


def outputs_of(request: GenerateRequest, cut: Callable[[], int]) -> Iterator[TokenOutput]:
    """Return a new engine's outputs for one choice: prompt scores, then the tokens after `resume_ids`."""
    params = request.params
    assert params.max_tokens is not None
    base = TokenOutput(request_id=request.request_id, choice=request.choice)
    position = 1
    if params.prompt_logprobs is not None:
        while position < len(PROMPT):
            end = min(position + cut(), len(PROMPT))
            scores = tuple(score(PROMPT[p], p) for p in range(position, end))
            yield msgspec.structs.replace(base, prompt_logprobs=scores)
            position = end
    done = len(request.resume_ids)
    while done < params.max_tokens:
        end = min(done + cut(), params.max_tokens)
        tokens = tuple(token_at(request, p) for p in range(done, end))
        logprobs = tuple(score(t, p) for p, t in enumerate(tokens, done))
        finish = FinishReason.LENGTH if end == params.max_tokens else None
        yield msgspec.structs.replace(
            base,
            token_ids=tokens,
            logprobs=logprobs if params.logprobs is not None else (),
            finish=finish,
            timings=NOW if finish else None,
        )
        done = end


@dataclass
class FrontEnd:
    """Does what `Hub` does, for a single request."""

    in_flight: InFlightRequest
    streamed: dict[int, str] = field(default_factory=dict)
    deltas: list[StreamDelta] = field(default_factory=list)
    result: RequestOutput | None = None
    aborts: list[int | None] = field(default_factory=list)

    def deliver(self, output: TokenOutput) -> None:
        assert self.result is None, "an output after the last"
        processed = self.in_flight.process(output)
        if processed.abort is not None:
            self.aborts.append(processed.abort.choice)
        if processed.delta is not None:
            delta = processed.delta
            self.streamed[delta.choice] = self.streamed.get(delta.choice, "") + delta.text
            self.deltas.append(delta)
        self.result = processed.finished


def run(front: FrontEnd, draw: Callable[[int], int], deaths: int) -> RequestOutput:
    """Interleave the choices at random; every engine except the last dies after some outputs."""
    for life in range(deaths + 1):
        messages, ends = front.in_flight.prepare_send("r0")
        for output in ends:
            front.deliver(output)
        engines = {m.choice: outputs_of(m, lambda: 1 + draw(3)) for m in messages}
        lasts = None if life == deaths else draw(12)
        while engines and lasts != 0 and front.result is None:
            choice = sorted(engines)[draw(len(engines))]
            front.aborts.clear()
            output = next(engines[choice])
            front.deliver(output)
            if output.finish is not None:
                del engines[choice]
            elif front.aborts:
                # The engine receives the abort later, or dies first.
                if draw(2):
                    continue
                del engines[choice]
                front.deliver(ended("r", FinishReason.ABORT, choice))
            lasts = None if lasts is None else lasts - 1
        if front.result is not None:
            return front.result
        front.in_flight.lose_engine(may_be_cause=True)
    raise AssertionError("the last engine lives until the end")


@pytest.mark.usefixtures("untraced")
@settings(max_examples=300, deadline=None)
@given(
    params=st.builds(
        SamplingParams,
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 9),
        seed=st.integers(0, 50),
        stop=st.sampled_from([(), ("bc",), ("c", "ab")]),
        logprobs=st.sampled_from([None, 1]),
        prompt_logprobs=st.sampled_from([None, 1]),
    ),
    deaths=st.integers(1, MAX_REPLAYS),
    dice=st.lists(st.integers(0, 1 << 16), min_size=200, max_size=200),
)
def test_engine_deaths_do_not_change_results(
    tokenizer: Tokenizer, params: SamplingParams, deaths: int, dice: list[int]
) -> None:
    prepared = Intake(tokenizer, RequestLimits(256, 64)).prepare("r", PromptTask(PROMPT, params), now=0.0)
    rolls = iter(dice * 20)
    plain, disturbed = [FrontEnd(InFlightRequest(prepared, tokenizer, Inbox())) for _ in range(2)]
    expected = run(plain, lambda sides: 0, deaths=0)
    result = run(disturbed, lambda sides: next(rolls) % sides, deaths=deaths)
    assert result == expected
    assert disturbed.streamed == plain.streamed
    for choice in result.choices:
        mine = [delta for delta in disturbed.deltas if delta.choice == choice.index]
        assert tuple(t for delta in mine for t in delta.token_ids) == choice.token_ids
        assert tuple(p for delta in mine for p in delta.logprobs) == (choice.logprobs or ())
        assert [d.finish_reason for d in mine if d.finish_reason] == [choice.finish_reason]


def test_a_request_that_never_gets_a_token_ends_with_an_error(tokenizer: Tokenizer) -> None:
    in_flight = request(tokenizer, "r", n=2)
    for _ in range(MAX_REPLAYS + 1):
        messages, ends = in_flight.prepare_send("r0")
        assert (len(messages), ends) == (2, [])
        in_flight.lose_engine(may_be_cause=True)
    messages, ends = in_flight.prepare_send("r0")
    assert messages == []
    assert [(o.choice, o.finish, o.failure) for o in ends] == [
        (choice, FinishReason.ERROR, ENGINE_LOST) for choice in (0, 1)
    ]
    assert in_flight.attempt == MAX_REPLAYS


def test_output_clears_suspicion_but_total_replays_are_limited(tokenizer: Tokenizer) -> None:
    in_flight = request(tokenizer, "r", max_tokens=59)
    for _ in range(MAX_TOTAL_REPLAYS + 1):
        assert in_flight.prepare_send("r0")[0]
        in_flight.process(token("r"))
        assert in_flight.suspicion == 0
        in_flight.lose_engine(may_be_cause=True)
    assert in_flight.prepare_send("r0")[0] == []


def test_unsent_requests_do_not_become_suspects(tokenizer: Tokenizer) -> None:
    in_flight = request(tokenizer, "r")
    for _ in range(10):
        in_flight.lose_engine(may_be_cause=True)
    assert in_flight.suspicion == 0
    assert in_flight.attempt == 0


def test_cached_token_counts_survive_a_new_engine(tokenizer: Tokenizer) -> None:
    in_flight = request(tokenizer, "r")
    in_flight.prepare_send("r0")
    first = in_flight.process(token("r")).delta
    in_flight.lose_engine(may_be_cause=True)
    in_flight.prepare_send("r0")
    second = in_flight.process(msgspec.structs.replace(token("r"), num_cached=0)).delta
    last = in_flight.process(msgspec.structs.replace(ended("r", FinishReason.LENGTH), num_cached=0)).finished
    assert first is not None
    assert second is not None
    assert last is not None
    assert (first.num_cached, second.num_cached, last.num_cached) == (4, 4, 4)
