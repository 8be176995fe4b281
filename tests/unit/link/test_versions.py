"""Front ends and engines of this protocol version work with those of the previous one.

The structs below are those of version 1, and must not be changed: a message that passes through them keeps
what a peer with version 1 understands, and loses the rest.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.loss import NOBODYS_FAULT
from octavo.link.versions import PROTOCOL_VERSION, arrived, departing, numbered_outputs
from octavo.link.wire import decode_from_engine, encode
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    EngineStats,
    Failure,
    FinishReason,
    GenerateRequest,
    Hello,
    Ready,
    SamplingParams,
    Timings,
    TokenLogprob,
)
from octavo.simulate.null_engine import FIRST_TOKEN
from octavo.text.tokenizer import Tokenizer
from unit.engine.test_loop import Wired
from unit.frontend.scripted_hub import Inbox, byte_tokenizer, request


class OldRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    request_id: str
    choice: int = 0
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    stop_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    weight: float = 1.0
    rank: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    cache_salt: str = ""
    resume_ids: tuple[int, ...] = ()


class OldAbort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str
    choice: int | None = None


class OldHello(msgspec.Struct, frozen=True, tag="hello"):
    pass


class OldOutput(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    num_cached: int = 0
    num_preemptions: int = 0
    timings: Timings | None = None
    failure: Failure | None = None


class OldOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: tuple[OldOutput, ...]
    stats: EngineStats
    num_taken: int = 0


class OldReady(msgspec.Struct, frozen=True, tag="ready"):
    facts: EngineFacts
    stats: EngineStats


decode_by_old_engine = msgspec.msgpack.Decoder(OldRequest | OldAbort | OldHello).decode
decode_by_old_front_end = msgspec.msgpack.Decoder(OldReady | OldOutputs).decode


class EngineAtSocket(Wired):
    """An engine loop, and the other end of its socket, where bytes can be seen."""

    def exchange(self, *messages: bytes) -> list[bytes]:
        for message in messages:
            self.front.send(message)
        self.loop.turn()
        received = []
        while self.front.poll(0):
            received.append(self.front.recv())
        return received


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineAtSocket]:
    engine = EngineAtSocket(tmp_path)
    yield engine
    engine.context.destroy(linger=0)


class OldEngineChannel:
    """The channel of this front end to an engine that knows only version 1."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: GenerateRequest | Abort) -> None:
        old = decode_by_old_engine(encode(departing(message, 1, now=0.0)))
        self.sent.append(msgspec.msgpack.encode(old))


def from_old_engine(data: bytes) -> EngineOutputs:
    message = decode_from_engine(msgspec.msgpack.encode(decode_by_old_front_end(data)))
    assert isinstance(message, EngineOutputs)
    return numbered_outputs(message, 1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


def test_this_front_end_works_with_an_old_engine(engine: EngineAtSocket, tokenizer: Tokenizer) -> None:
    """Even if the request returns to the engine that has it already."""
    hub, channel, inbox = Hub(), OldEngineChannel(), Inbox()
    hub.connect("old", channel)
    in_flight: InFlightRequest = request(tokenizer, "q", inbox, n=2)
    hub.submit(in_flight)
    outputs = engine.exchange(*channel.sent)
    outputs += engine.exchange()
    hub.receive("old", from_old_engine(outputs[0]))
    hub.disconnect("old", NOBODYS_FAULT)
    channel.sent.clear()
    hub.connect("old", channel)
    outputs += engine.exchange(*channel.sent)
    for _ in range(12):
        outputs += engine.exchange()
    for data in outputs[1:]:
        hub.receive("old", from_old_engine(data))
    assert inbox.result is not None
    first = FIRST_TOKEN + len(in_flight.prepared.prompt_ids)
    expected = tuple(range(first, first + 9))
    assert [choice.token_ids for choice in inbox.result.choices] == [expected, expected]


def test_an_old_front_end_works_with_this_engine(engine: EngineAtSocket) -> None:
    (ready,) = engine.exchange(msgspec.msgpack.encode(OldHello()))
    assert isinstance(decode_by_old_front_end(ready), OldReady)
    params = SamplingParams(max_tokens=3, seed=0)
    message = OldRequest(request_id="q", prompt_ids=(1, 2), params=params, arrival=1.0)
    received = engine.exchange(msgspec.msgpack.encode(message))
    for _ in range(3):
        received += engine.exchange()
    tokens = []
    for data in received:
        outputs = decode_by_old_front_end(data)
        assert isinstance(outputs, OldOutputs)
        tokens += [token for output in outputs.outputs for token in output.token_ids]
    assert tokens == [FIRST_TOKEN + 2, FIRST_TOKEN + 3, FIRST_TOKEN + 4]


def test_both_sides_say_their_version(engine: EngineAtSocket) -> None:
    (data,) = engine.exchange(encode(Hello("front", PROTOCOL_VERSION)))
    ready = decode_from_engine(data)
    assert isinstance(ready, Ready)
    assert ready.version == PROTOCOL_VERSION


def test_times_do_not_depend_on_a_shared_clock() -> None:
    message = GenerateRequest(
        request_id="q", prompt_ids=(1,), params=SamplingParams(), arrival=90.0, deadline=130.0
    )
    sent = departing(message, PROTOCOL_VERSION, now=100.0)
    assert isinstance(sent, GenerateRequest)
    assert (sent.arrival, sent.deadline) == (0.0, None)
    received = arrived(sent, now=7.0)
    assert (received.arrival, received.deadline) == (-3.0, 37.0)
    assert arrived(message, now=7.0) == message, "a front end with version 1 sends times"


def test_a_new_connection_of_a_front_end_ends_the_earlier_one(engine: EngineAtSocket) -> None:
    """What it asked for is aborted, and can be asked for again at once."""
    ask = GenerateRequest(request_id="q", prompt_ids=(1, 2), params=SamplingParams(max_tokens=3, seed=0))
    engine.exchange(encode(Hello("front", PROTOCOL_VERSION)), encode(ask))
    engine.front = engine.connect()
    again = msgspec.structs.replace(ask, attempt=1)
    received = engine.exchange(encode(Hello("front", PROTOCOL_VERSION)), encode(again))
    for _ in range(3):
        received += engine.exchange()
    messages = [decode_from_engine(data) for data in received]
    outputs = [one for message in messages if isinstance(message, EngineOutputs) for one in message.outputs]
    assert {output.attempt for output in outputs} == {1}
    assert [output.position for output in outputs] == [0, 1, 2]
    assert outputs[-1].finish is FinishReason.LENGTH
