"""The engine loop over a socket drops garbage, rejects invalid requests and serves valid ones."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.heartbeat_writer import HeartbeatWriter
from octavo.engine.loop import EngineLoop
from octavo.kernels.prefix_index import block_hasher
from octavo.link.folder import EngineFolder, EngineSettings
from octavo.link.wire import FromEngine, decode_from_engine, encode
from octavo.protocol import (
    Abort,
    AskPrefixes,
    EngineOutputs,
    FinishReason,
    GenerateRequest,
    Hello,
    PrefixList,
    Ready,
    SamplingParams,
)
from octavo.simulate.null_engine import BLOCK_SIZE, FINGERPRINT, FIRST_TOKEN, start_null_engine
from octavo.view import EngineView, Watch

PARAMS = SamplingParams(max_tokens=3, seed=0)


class Wired:
    """A loop that tests turn explicitly, and a front end at the other end of its socket."""

    def __init__(self, tmp_path: Path) -> None:
        folder = EngineFolder.create(tmp_path / "e", EngineSettings({}))
        self.heartbeat = folder.open_heartbeat()
        heartbeat_writer = HeartbeatWriter(self.heartbeat)
        core, facts = start_null_engine(
            EngineSettings({"vocab_size": 300}), self.heartbeat, heartbeat_writer.around
        )
        self.context = zmq.Context()
        router = self.context.socket(zmq.ROUTER)
        router.bind("inproc://engine")
        self.loop = EngineLoop(core, facts, router, self.heartbeat, heartbeat_writer)
        self.core = core
        self.front = self.connect()

    def connect(self) -> zmq.Socket[bytes]:
        front = self.context.socket(zmq.DEALER)
        front.connect("inproc://engine")
        return front

    def ask(self, *data: bytes) -> None:
        self.front.send_multipart(list(data))
        self.loop.turn()

    def answers(self) -> list[FromEngine]:
        answers = []
        while self.front.poll(0):
            answers.append(decode_from_engine(self.front.recv()))
        return answers

    def serves(self) -> bool:
        """Send a complete request and return whether it is served correctly."""
        self.answers()
        self.front.send(encode(GenerateRequest(request_id="probe", prompt_ids=(1, 2), params=PARAMS)))
        self.loop.turn()
        while self.core.has_unfinished:
            self.loop.turn()
        outputs = [o for a in self.answers() if isinstance(a, EngineOutputs) for o in a.outputs]
        tokens = [t for o in outputs if o.request_id == "probe" for t in o.token_ids]
        return tokens == [FIRST_TOKEN + 2, FIRST_TOKEN + 3, FIRST_TOKEN + 4]


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(tmp_path)
    yield wired
    wired.context.destroy(linger=0)


def test_hello_is_answered_with_engine_facts(wired: Wired) -> None:
    wired.ask(encode(Hello()))
    (answer,) = wired.answers()
    assert isinstance(answer, Ready)
    assert answer.facts.vocab_size == 300


def test_a_front_end_that_asks_learns_every_change_of_the_cache(wired: Wired) -> None:
    """A list, and then numbered changes: together they are what the engine has."""
    other = wired.connect()
    other.send(encode(Hello("other")))

    def compute(first: int) -> None:
        prompt = tuple(range(first, first + 2 * BLOCK_SIZE))
        wired.ask(encode(GenerateRequest(request_id=f"q{first}", prompt_ids=prompt, params=PARAMS)))
        while wired.core.has_unfinished:
            wired.loop.turn()

    wired.ask(encode(Hello("routes")))
    compute(0)
    assert all(a.prefixes is None for a in wired.answers() if isinstance(a, EngineOutputs)), "not asked yet"
    wired.ask(encode(AskPrefixes()))
    (listed,) = [a for a in wired.answers() if isinstance(a, PrefixList)]
    assert len(listed.keys) == 2 * 8
    compute(100)
    changes = [a.prefixes for a in wired.answers() if isinstance(a, EngineOutputs) and a.prefixes]
    assert [change.sequence for change in changes] == [listed.sequence + 1]
    now = wired.core.prefixes()
    assert now.sequence == changes[-1].sequence
    assert set(keys_in(now.keys)) == set(keys_in(listed.keys + changes[0].added))
    hasher = block_hasher(FINGERPRINT, BLOCK_SIZE)
    assert hasher is not None
    assert keys_in(changes[0].added) == list(hasher.prompt_keys("", range(100, 100 + 2 * BLOCK_SIZE)))
    while other.poll(0):
        message = decode_from_engine(other.recv())
        assert not isinstance(message, PrefixList)
        assert not isinstance(message, EngineOutputs) or message.prefixes is None


def keys_in(data: bytes) -> list[int]:
    return list(array("Q", data))


def test_preparation_waits_until_the_engine_is_idle(wired: Wired) -> None:
    """Preparation holds the interpreter lock, which would stall streams."""
    prepared: list[bool] = []
    wired.core.prepare = lambda wait: prepared.append(True)
    assert wired.serves()
    assert not prepared
    wired.loop.turn()
    assert prepared


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(frames=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_random_bytes_are_dropped(wired: Wired, frames: list[bytes]) -> None:
    wired.ask(*frames)
    assert wired.answers() == []
    assert not wired.core.has_unfinished


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(place=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 200))
def test_a_damaged_message_is_dropped_rejected_or_served(
    wired: Wired, place: int, byte: int, cut: int
) -> None:
    data = bytearray(encode(GenerateRequest(request_id="r", prompt_ids=(1, 2), params=PARAMS)))
    data[place % len(data)] = byte
    wired.ask(bytes(data[: 1 + (cut % len(data))]))
    wired.ask(bytes(data))
    for _ in range(10):
        if wired.core.has_unfinished:
            wired.loop.turn()
    wired.ask(encode(Abort("r")))  # the request may have become a long one
    assert wired.serves()


def test_deep_nesting_is_dropped(wired: Wired) -> None:
    wired.ask(b"\x91" * 100_000)
    assert wired.serves()


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_ids": ()},
        {"prompt_ids": (300,)},
        {"prompt_ids": (-1,)},
        {"prompt_ids": (1 << 63,)},
        {"resume_ids": (1 << 40,)},
        {"stop_ids": (1 << 63,)},
        {"params": SamplingParams(seed=0)},
        {"params": SamplingParams(max_tokens=3)},
        {"params": SamplingParams(max_tokens=3, seed=0, logit_bias={999: 1.0})},
        {"prompt_ids": (1,) * 9000},
    ],
)
def test_messages_that_intake_would_never_send_are_rejected(wired: Wired, changes: dict[str, object]) -> None:
    good = GenerateRequest(request_id="r", prompt_ids=(1,), params=PARAMS)
    wired.ask(encode(msgspec.structs.replace(good, **changes)))
    (answer,) = wired.answers()
    assert isinstance(answer, EngineOutputs)
    assert [output.finish for output in answer.outputs] == [FinishReason.ERROR]
    assert answer.num_taken == 1
    assert wired.serves()


def test_an_id_in_use_is_rejected_and_stays_with_its_owner(wired: Wired) -> None:
    request = encode(GenerateRequest(request_id="r", prompt_ids=(1, 2), params=PARAMS))
    first, wired.front = wired.front, wired.connect()
    first.send(request)
    wired.loop.turn()
    wired.ask(request)
    (answer,) = wired.answers()
    assert isinstance(answer, EngineOutputs)
    assert answer.outputs[0].finish is FinishReason.ERROR
    while wired.core.has_unfinished:
        wired.loop.turn()
    wired.front = first
    answers = [answer for answer in wired.answers() if isinstance(answer, EngineOutputs)]
    assert [len(output.token_ids) for answer in answers for output in answer.outputs] == [1, 1, 1]
    assert {answer.num_taken for answer in answers} == {1}, "each front end has its own count"


def test_only_watching_front_ends_receive_views(wired: Wired) -> None:
    wired.serves()
    assert not [one for one in wired.answers() if isinstance(one, EngineView)]
    wired.ask(encode(GenerateRequest(request_id="r", prompt_ids=(1, 2), params=PARAMS)))
    watcher, wired.front = wired.front, wired.connect()
    watcher.send(encode(Watch(60.0, 0.0)))
    while wired.core.has_unfinished:
        wired.loop.turn()
    assert not [one for one in wired.answers() if isinstance(one, EngineView)]
    wired.front = watcher
    views = [one for one in wired.answers() if isinstance(one, EngineView)]
    assert views
    assert views[0].sequences[0].request_id == "r"
    wired.ask(encode(Watch(0.0, 0.0)))
    wired.answers()
    wired.serves()
    assert not [one for one in wired.answers() if isinstance(one, EngineView)]


def test_an_idle_engine_keeps_sending_views(wired: Wired) -> None:
    wired.ask(encode(Watch(60.0, 0.01)))
    for _ in range(5):
        wired.loop.turn()  # waits for the next view, not for a message
    views = [one for one in wired.answers() if isinstance(one, EngineView)]
    assert len(views) > 2
    assert all(one.blocks == ((-1, one.stats.blocks_total),) for one in views)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
@pytest.mark.parametrize("interval", [float("nan"), float("inf"), -1.0, 1e300])
def test_watch_messages_with_invalid_numbers_are_harmless(
    wired: Wired, seconds: float, interval: float
) -> None:
    wired.ask(encode(Watch(seconds, interval)))
    assert wired.serves()
