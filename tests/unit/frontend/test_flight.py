"""Whatever an engine had told before it died, replay and the rest give what would have come undisturbed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.frontend.flight import ENGINE_LOST, MOST_REPLAYS, MOST_REPLAYS_IN_ALL, Flight
from octavo.frontend.flights import SUSPICIOUS, Flights
from octavo.frontend.intake import Intake, Limits, PromptTask
from octavo.frontend.output import OutputProcessor, RequestOutput, StreamDelta
from octavo.protocol import FinishReason, GenerateRequest, SamplingParams, Timings, TokenLogprob, TokenOutput
from octavo.text.assets import TextAssets
from octavo.text.tokenizer import Tokenizer

PROMPT = (3, 1, 4, 1, 5)
NOW = Timings(0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte is a token."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TextAssets(backend.to_str()))


def token_at(request: GenerateRequest, position: int) -> int:
    """Of a few letters, so that stop strings are met."""
    return 66 + hash((request.params.seed, request.choice, position)) % 3


def score(token: int, position: int) -> TokenLogprob:
    return TokenLogprob(token, -float(position), ((token, -float(position)),))


def outputs_of(request: GenerateRequest, cut: Callable[[], int]) -> Iterator[TokenOutput]:
    """What a new engine says of one choice: the prompt's scores, then what follows `resume_ids`."""
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
    """What EngineService does with one flight, without the sockets."""

    tokenizer: Tokenizer
    flight: Flight
    streamed: dict[int, str] = field(default_factory=dict)
    deltas: list[StreamDelta] = field(default_factory=list)
    result: RequestOutput | None = None
    aborts: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.processor = OutputProcessor(self.tokenizer)
        self.processor.open(self.flight.prepared)

    def deliver(self, output: TokenOutput) -> None:
        assert self.result is None, "an output after the last"
        processed = self.processor.process(self.flight.note(output))
        if processed.abort is not None:
            self.flight.stop(processed.abort.choice)
            self.aborts.append(processed.abort.choice)
        if processed.delta is not None:
            delta = processed.delta
            self.streamed[delta.choice] = self.streamed.get(delta.choice, "") + delta.text
            self.deltas.append(delta)
        self.result = processed.finished


def run(front: FrontEnd, draw: Callable[[int], int], deaths: int) -> RequestOutput:
    """Choices take turns at random; every engine but the last dies after some outputs."""
    for life in range(deaths + 1):
        messages, ended = front.flight.ask()
        for output in ended:
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
                # The engine takes note later, or dies first.
                if draw(2):
                    continue
                del engines[choice]
                front.deliver(
                    TokenOutput(request_id="r", choice=choice, finish=FinishReason.ABORT, timings=NOW)
                )
            lasts = None if lasts is None else lasts - 1
        if front.result is not None:
            return front.result
        front.flight.lose_engine()
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
    deaths=st.integers(1, MOST_REPLAYS),
    dice=st.lists(st.integers(0, 1 << 16), min_size=200, max_size=200),
)
def test_deaths_change_nothing(
    tokenizer: Tokenizer, params: SamplingParams, deaths: int, dice: list[int]
) -> None:
    prepared = Intake(tokenizer, Limits(256, 64)).prepare("r", PromptTask(PROMPT, params), now=0.0)
    rolls = iter(dice * 20)
    plain, disturbed = FrontEnd(tokenizer, Flight(prepared)), FrontEnd(tokenizer, Flight(prepared))
    expected = run(plain, lambda sides: 0, deaths=0)
    result = run(disturbed, lambda sides: next(rolls) % sides, deaths=deaths)
    assert result == expected
    assert disturbed.streamed == plain.streamed
    for choice in result.choices:
        mine = [delta for delta in disturbed.deltas if delta.choice == choice.index]
        assert tuple(t for delta in mine for t in delta.token_ids) == choice.token_ids
        assert tuple(p for delta in mine for p in delta.logprobs) == (choice.logprobs or ())
        assert [d.finish_reason for d in mine if d.finish_reason] == [choice.finish_reason]


def flight_of(tokenizer: Tokenizer, name: str, **params: int) -> Flight:
    definite = msgspec.structs.replace(SamplingParams(max_tokens=9, seed=0), **params)
    return Flight(Intake(tokenizer, Limits(256, 64)).prepare(name, PromptTask(PROMPT, definite), now=0.0))


def token(flight: Flight, finish: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id=flight.request_id,
        choice=0,
        token_ids=(66,),
        finish=finish,
        timings=NOW if finish else None,
        num_cached=4,
    )


def test_a_request_that_never_gets_a_token_ends_with_an_error(tokenizer: Tokenizer) -> None:
    flight = flight_of(tokenizer, "r", n=2)
    for _ in range(MOST_REPLAYS + 1):
        messages, ended = flight.ask()
        assert (len(messages), ended) == (2, [])
        flight.lose_engine()
    messages, ended = flight.ask()
    assert messages == []
    assert [(o.choice, o.finish, o.failure) for o in ended] == [
        (choice, FinishReason.ERROR, ENGINE_LOST) for choice in (0, 1)
    ]
    assert flight.num_replays == MOST_REPLAYS


def test_a_token_clears_a_request_but_not_for_ever(tokenizer: Tokenizer) -> None:
    flight = flight_of(tokenizer, "r", max_tokens=59)
    for _ in range(MOST_REPLAYS_IN_ALL + 1):
        assert flight.ask()[0]
        flight.note(token(flight))
        assert flight.blame == 0
        flight.lose_engine()
    assert flight.ask()[0] == []


def test_an_engine_that_was_never_asked_is_nobodys_fault(tokenizer: Tokenizer) -> None:
    flight = flight_of(tokenizer, "r")
    for _ in range(10):
        flight.lose_engine()
    assert flight.blame == 0
    assert flight.num_replays == 0


def test_usage_does_not_change_with_the_cache_of_a_new_engine(tokenizer: Tokenizer) -> None:
    flight = flight_of(tokenizer, "r")
    flight.ask()
    assert flight.note(token(flight)).num_cached == 4
    flight.lose_engine()
    flight.ask()
    assert flight.note(msgspec.structs.replace(token(flight), num_cached=0)).num_cached == 4


@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_that_kills_every_engine_is_found_and_its_neighbours_are_not_blamed(
    tokenizer: Tokenizer, place: int
) -> None:
    """The worst case: it kills at the first step, before anybody gets a token."""
    flights = Flights()
    for number in range(8):
        flights.add(flight_of(tokenizer, f"r{number}"))
    finished: dict[str, FinishReason] = {}
    num_deaths = 0
    while len(flights):
        flights.meet_engine()
        asked: list[Flight] = []
        is_alive = True
        while is_alive and len(flights):
            for flight in flights.due():
                messages, ended = flight.ask()
                if messages:
                    asked.append(flight)
                for output in ended:
                    finished[flight.request_id] = output.finish or FinishReason.STOP
                    flights.remove(flight)
            if any(flight.request_id == f"r{place}" for flight in asked):
                is_alive = False  # a step with the poisoned one
            for flight in list(asked) if is_alive else []:
                last = len(flight._emitted[0]) == 8
                flight.note(token(flight, FinishReason.LENGTH if last else None))
                if last:
                    finished[flight.request_id] = FinishReason.LENGTH
                    asked.remove(flight)
                    flights.remove(flight)
        if not is_alive:
            num_deaths += 1
            flights.lose_engine()
    assert finished.pop(f"r{place}") is FinishReason.ERROR
    assert set(finished.values()) == {FinishReason.LENGTH}
    assert len(finished) == 7
    assert num_deaths == MOST_REPLAYS + 1


def test_after_a_trial_requests_are_asked_for_at_once_again(tokenizer: Tokenizer) -> None:
    flights = Flights()
    suspects = [flight_of(tokenizer, f"r{number}") for number in range(2)]
    for flight in suspects:
        flights.add(flight)
    for _ in range(SUSPICIOUS):
        flights.meet_engine()
        for flight in flights.due():
            flight.ask()
        flights.lose_engine()
    flights.meet_engine()
    newcomer = flight_of(tokenizer, "new")
    flights.add(newcomer)
    order = []
    while due := [flight for flight in flights.due() if flight.ask()]:
        assert len(due) == 1, "one by one"
        order += due
        assert list(flights.due()) == [], "the next waits for a token of the last"
        due[0].note(token(due[0]))
    assert order == [*suspects, newcomer]
    for number in range(3):
        flights.add(flight_of(tokenizer, f"later{number}"))
    assert len(list(flights.due())) == 3


def test_who_is_gone_does_not_hold_up_the_rest(tokenizer: Tokenizer) -> None:
    flights = Flights()
    suspects = [flight_of(tokenizer, f"r{number}") for number in range(3)]
    for flight in suspects:
        flight.blame = SUSPICIOUS
        flights.add(flight)
    flights.meet_engine()
    assert [f.request_id for f in flights.due() if f.ask()] == ["r0"]
    flights.remove(suspects[0])  # on trial, and aborted
    flights.remove(suspects[1])  # aborted while it waited
    assert [f.request_id for f in flights.due() if f.ask()] == ["r2"]
