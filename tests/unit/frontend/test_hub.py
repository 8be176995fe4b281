"""In-flight requests over a channel whose other end is the test."""

import time

import msgspec
import pytest

from data.engine_facts import IDLE_STATS
from octavo.fairness.tenant import Tenant
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import (
    ENGINE_HUNG,
    ENGINE_LOST,
    MAX_REPLAYS,
    SUSPECT_AFTER,
    InFlightRequest,
)
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.loss import Loss
from octavo.frontend.output import StreamDelta
from octavo.frontend.quarantine import MAX_ISOLATED_STEPS
from octavo.frontend.updates import MAX_BUFFERED, Updates
from octavo.link.heartbeat import request_number
from octavo.protocol import Abort, EngineOutputs, FinishReason, GenerateRequest, SamplingParams, TokenOutput
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import LETTER, PROMPT, Inbox, ScriptedChannel, ended, request, token


def asked(channel: ScriptedChannel) -> list[str]:
    """Return the ids of the requests sent to the engine since the last call."""
    messages = channel.take()
    assert all(isinstance(message, GenerateRequest) for message in messages)
    return [message.request_id for message in messages]


def outcome(inbox: Inbox, choice: int = 0) -> tuple[str, str | None]:
    assert inbox.result is not None
    last = inbox.result.choices[choice]
    return last.finish_reason, last.error


# -- from request to answer -----------------------------------------------------------------------------


def test_requests_submitted_without_an_engine_are_sent_when_one_connects(
    tokenizer: Tokenizer,
) -> None:
    hub, channel = Hub(), ScriptedChannel()
    requests = [request(tokenizer, f"r{number}", n=2) for number in range(2)]
    for in_flight in requests:
        hub.submit(in_flight)
    hub.connect("r0", channel)
    assert channel.take() == [message for one in requests for message in one.prepared.messages]
    later = request(tokenizer, "later")
    hub.submit(later)
    assert channel.take() == [*later.prepared.messages]


def test_every_update_reaches_its_recipient(tokenizer: Tokenizer) -> None:
    hub, channel, inboxes = Hub(), ScriptedChannel(), [Inbox(), Inbox()]
    hub.connect("r0", channel)
    for number, inbox in enumerate(inboxes):
        hub.submit(request(tokenizer, f"r{number}", inbox))
    hub.receive("r0", channel.step(token("r0"), token("r1"), token("nobody")))
    hub.receive("r0", channel.step(token("r1", FinishReason.LENGTH)))
    assert len(hub) == 1
    hub.receive("r0", channel.step(token("r0"), token("r0"), token("r0", FinishReason.LENGTH)))
    assert len(hub) == 0
    for inbox, num_tokens in zip(inboxes, (4, 2), strict=True):
        assert inbox.result is not None
        assert inbox.result.token_ids == (LETTER,) * num_tokens
        deltas = [update.text for update in inbox.updates if isinstance(update, StreamDelta)]
        assert (len(deltas), "".join(deltas)) == (num_tokens, inbox.result.text)


def test_a_stop_string_aborts_the_choice_in_the_engine(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "r", inbox, n=2, stop=(tokenizer.decode([LETTER]),)))
    channel.take()
    hub.receive("r0", channel.step(token("r", choice=1)))
    assert channel.take() == [Abort("r", 1)]
    hub.disconnect("r0", Loss())  # before the engine confirmed the abort
    hub.connect("r0", channel)
    assert [message.choice for message in channel.take()] == [0], "the finished choice is not replayed"
    hub.receive("r0", channel.step(token("r", FinishReason.LENGTH, token_id=LETTER + 1)))
    assert inbox.result is not None
    assert [choice.finish_reason for choice in inbox.result.choices] == ["length", "stop"]


# -- ends -------------------------------------------------------------------------------------------------


def test_aborting_an_unsent_request_needs_no_engine(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.submit(request(tokenizer, "r", inbox))
    hub.abort("r")
    assert outcome(inbox) == ("abort", None)
    hub.connect("r0", channel)
    assert channel.take() == []
    hub.abort("r")  # no longer known
    assert (channel.take(), len(hub)) == ([], 0)


def test_an_aborted_request_ends_when_the_engine_confirms(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "r", inbox))
    channel.take()
    hub.receive("r0", channel.step(token("r")))
    hub.abort("r")
    assert channel.take() == [Abort("r")]
    assert inbox.result is None
    hub.receive("r0", channel.step(ended("r", FinishReason.ABORT)))
    assert outcome(inbox) == ("abort", None)
    assert len(hub) == 0


def test_an_abort_completes_although_the_engine_died(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "r", inbox))
    hub.abort("r")
    channel.take()
    hub.disconnect("r0", Loss())
    hub.connect("r0", channel)
    assert channel.take() == []
    assert outcome(inbox) == ("abort", None)


def test_a_detokenizer_error_ends_only_its_request(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = IncrementalDetokenizer.push

    def fails(self: IncrementalDetokenizer, token_ids: tuple[int, ...]) -> str:
        if 99 in token_ids:
            raise RuntimeError("not this one")
        return push(self, token_ids)

    monkeypatch.setattr(IncrementalDetokenizer, "push", fails)
    hub, channel, bad, good = Hub(), ScriptedChannel(), Inbox(), Inbox()
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "bad", bad))
    hub.submit(request(tokenizer, "good", good))
    channel.take()
    hub.receive("r0", channel.step(token("bad", token_id=99), token("good")))
    assert channel.take() == [Abort("bad")]
    hub.receive("r0", channel.step(ended("bad", FinishReason.ABORT), token("good", FinishReason.LENGTH)))
    assert [str(update) for update in bad.updates] == ["not this one"]
    assert outcome(good) == ("length", None)
    assert len(hub) == 0


def test_an_unread_request_is_aborted_once(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "r", inbox))
    channel.take()
    inbox.is_full = True
    hub.receive("r0", channel.step(token("r")))
    hub.receive("r0", channel.step(token("r")))
    assert channel.take() == [Abort("r")]


def test_unread_updates_fill_the_buffer() -> None:
    updates = Updates()
    for _ in range(MAX_BUFFERED):
        updates.put(RuntimeError("unread"))
    assert not updates.is_full
    updates.put(RuntimeError("unread"))
    assert updates.is_full


def test_a_deadline_does_not_wait_for_an_engine(tokenizer: Tokenizer) -> None:
    hub, inboxes = Hub(), {timeout: Inbox() for timeout in (1e-9, 1e6, None)}
    intake = Intake(tokenizer, RequestLimits(256, 64))
    for timeout, inbox in inboxes.items():
        prepared = intake.prepare(
            f"r{timeout}", PromptTask(PROMPT, SamplingParams()), now=time.monotonic(), timeout=timeout
        )
        hub.submit(InFlightRequest(prepared, tokenizer, inbox))
    hub.end_expired()
    assert outcome(inboxes[1e-9]) == ("deadline", None)
    assert len(hub) == 2


def test_a_request_that_ends_during_its_abort_ends_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, unread, failing = Hub(), Inbox(), Inbox()
    unread.is_full = True
    hub.submit(request(tokenizer, "unread", unread, n=3))
    hub.give_up("no engine")
    assert unread.result is not None
    assert [choice.finish_reason for choice in unread.result.choices] == ["error", "abort", "abort"]

    def fails(self: IncrementalDetokenizer) -> str:
        raise RuntimeError("not this one")

    monkeypatch.setattr(IncrementalDetokenizer, "finish", fails)
    hub.submit(request(tokenizer, "failing", failing, n=3))
    assert [str(update) for update in failing.updates] == ["not this one"]
    assert len(hub) == 0


def test_after_giving_up_every_request_gets_the_first_reason(tokenizer: Tokenizer) -> None:
    hub, before, after = Hub(), Inbox(), Inbox()
    hub.connect("r0", ScriptedChannel())
    hub.submit(request(tokenizer, "before", before))
    hub.give_up("no engine")
    hub.give_up("closed")
    hub.submit(request(tokenizer, "after", after))
    assert outcome(before) == outcome(after) == ("error", "no engine")
    assert len(hub) == 0


# -- engines that die ---------------------------------------------------------------------------------------


def test_a_new_engine_resumes_in_flight_requests(tokenizer: Tokenizer) -> None:
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    hub.connect("r0", channel)
    in_flight = request(tokenizer, "r", inbox, n=2)
    hub.submit(in_flight)
    channel.take()
    hub.receive("r0", channel.step(token("r"), token("r", choice=1), token("r")))
    hub.receive("r0", channel.step(token("r", FinishReason.LENGTH, choice=1)))
    hub.disconnect("r0", Loss())
    hub.submit(request(tokenizer, "while there is none"))
    assert channel.take() == []
    following = ScriptedChannel()
    hub.connect("r0", following)
    first, _ = following.take()
    assert first == msgspec.structs.replace(
        in_flight.prepared.messages[0], resume_ids=(LETTER, LETTER), attempt=1
    ), "received tokens and finished choices are not replayed"
    hub.receive("r0", following.step(token("r", FinishReason.LENGTH)))
    assert inbox.result is not None
    assert [choice.token_ids for choice in inbox.result.choices] == [(LETTER,) * 3, (LETTER,) * 2]
    assert channel.take() == []


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_request_that_kills_every_engine_fails_alone(tokenizer: Tokenizer, place: int) -> None:
    """The worst case: it kills the engine in the first step, before any request has a token."""
    hub, inboxes = Hub(), {f"r{number}": Inbox() for number in range(8)}
    for name, inbox in inboxes.items():
        hub.submit(request(tokenizer, name, inbox))
    num_deaths = 0
    while len(hub):
        channel = ScriptedChannel()
        hub.connect("r0", channel)
        running: dict[str, int] = {}  # remaining tokens of each request
        while len(hub):
            running |= {
                message.request_id: 9 - len(message.resume_ids)
                for message in channel.take()
                if isinstance(message, GenerateRequest)
            }
            if f"r{place}" in running:  # a step with the fatal request
                num_deaths += 1
                hub.disconnect("r0", Loss())
                break
            running = {name: left - 1 for name, left in running.items()}
            lasts = {name for name, left in running.items() if left == 0}
            hub.receive(
                "r0", channel.step(*(token(n, FinishReason.LENGTH if n in lasts else None) for n in running))
            )
            running = {name: left for name, left in running.items() if left}
    assert outcome(inboxes.pop(f"r{place}")) == ("error", ENGINE_LOST.message)
    assert [outcome(inbox) for inbox in inboxes.values()] == [("length", None)] * 7
    assert num_deaths == MAX_REPLAYS + 1


def test_after_isolation_requests_are_sent_immediately(tokenizer: Tokenizer) -> None:
    hub, channel = Hub(), ScriptedChannel()
    for number in range(2):
        hub.submit(request(tokenizer, f"r{number}"))
    for _ in range(SUSPECT_AFTER):
        hub.connect("r0", channel)
        assert asked(channel) == ["r0", "r1"]
        hub.disconnect("r0", Loss())
    hub.connect("r0", channel)
    hub.submit(request(tokenizer, "new"))
    for name in ("r0", "r1", "new"):
        assert asked(channel) == [name], "suspects are sent one at a time"
        hub.receive("r0", channel.step())
        assert asked(channel) == [], "the next one waits for a token of the previous one"
        hub.receive("r0", channel.step(token(name)))
    for number in range(3):
        hub.submit(request(tokenizer, f"later{number}"))
    assert asked(channel) == ["later0", "later1", "later2"]


def test_aborted_suspects_do_not_block_isolation(tokenizer: Tokenizer) -> None:
    hub, channel = Hub(), ScriptedChannel()
    for number in range(3):
        hub.submit(request(tokenizer, f"r{number}"))
    for _ in range(SUSPECT_AFTER):
        hub.connect("r0", channel)
        hub.disconnect("r0", Loss())
    channel.take()
    hub.connect("r0", channel)
    assert asked(channel) == ["r0"]
    hub.abort("r1")  # while it waits for isolation
    hub.abort("r0")  # while it is isolated
    assert channel.take() == [Abort("r0", attempt=SUSPECT_AFTER)]
    hub.receive("r0", channel.step(ended("r0", FinishReason.ABORT)))
    assert asked(channel) == ["r2"]


# -- engines that hang --------------------------------------------------------------------------------------


class HangingEngine:
    """Executes steps; the choices in `hang_at` hang it when they have that number of tokens."""

    def __init__(self, hub: Hub, hang_at: dict[tuple[str, int], int]) -> None:
        self._hub = hub
        self._hang_at = hang_at
        self._channel = ScriptedChannel()
        self._num_tokens: dict[tuple[str, int], int] = {}
        self._led: set[str] = set()  # requests whose first choice has a token, so that the others may start
        hub.connect("r0", self._channel)

    def run(self) -> bool:
        """Run until it hangs, which is reported to the hub, or until all requests have finished."""
        while len(self._hub):
            for message in self._channel.take():
                assert isinstance(message, GenerateRequest)
                self._num_tokens[message.request_id, message.choice] = len(message.resume_ids)
            leaders = dict(reversed(self._num_tokens))
            in_step = [one for one in self._num_tokens if one[0] in self._led or leaders[one[0]] == one[1]]
            if any(self._hang_at.get(one) == self._num_tokens[one] for one in in_step):
                names = {name for name, _ in in_step}
                name = names.pop() if len(names) == 1 else ""
                self._hub.disconnect("r0", Loss(is_hang=True, request_id=name))
                return True
            self._hub.receive("r0", self._channel.step(*[self._token(*one) for one in in_step]))
        return False

    def _token(self, name: str, choice: int) -> TokenOutput:
        self._led.add(name)
        self._num_tokens[name, choice] += 1
        is_last = self._num_tokens[name, choice] == 9
        if is_last:
            del self._num_tokens[name, choice]
        return token(name, FinishReason.LENGTH if is_last else None, choice)


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_hanging_request_hangs_two_engines_and_fails_alone(
    tokenizer: Tokenizer, place: int, tokens: int, choice: int, caplog: pytest.LogCaptureFixture
) -> None:
    hub, inboxes = Hub(), {f"r{number}": Inbox() for number in range(8)}
    for number, (name, inbox) in enumerate(inboxes.items()):
        hub.submit(request(tokenizer, name, inbox, n=2 if number in (place, 5) else 1))
    hang_at = {(f"r{place}", choice): tokens}
    assert [HangingEngine(hub, hang_at).run() for _ in range(3)] == [True, True, False]
    assert outcome(inboxes.pop(f"r{place}"), choice) == ("error", ENGINE_HUNG.message)
    assert [outcome(inbox) for inbox in inboxes.values()] == [("length", None)] * 7
    assert f"request r{place} hung the engine" in caplog.text


def test_a_single_request_in_a_hung_engine_is_retried(tokenizer: Tokenizer) -> None:
    """The machine may have been suspended."""
    hub, unlucky = Hub(), Inbox()
    hub.submit(request(tokenizer, "unlucky", unlucky))
    assert [HangingEngine(hub, hang_at).run() for hang_at in ({("unlucky", 0): 3}, {})] == [True, False]
    assert outcome(unlucky) == ("length", None)


def test_a_single_hanging_request_hangs_two_engines(tokenizer: Tokenizer) -> None:
    hub, bad = Hub(), Inbox()
    hub.submit(request(tokenizer, "bad", bad))
    assert [HangingEngine(hub, {("bad", 0): 3}).run() for _ in range(2)] == [True, True]
    assert outcome(bad) == ("error", ENGINE_HUNG.message)
    for number in range(3):
        hub.submit(request(tokenizer, f"r{number}"))
    channel = ScriptedChannel()
    hub.connect("r0", channel)
    assert asked(channel) == ["r0", "r1", "r2"], "the culprit is known: no request is isolated"


def test_each_hanging_request_costs_one_more_isolation(tokenizer: Tokenizer) -> None:
    hub, inboxes = Hub(), {f"r{number}": Inbox() for number in range(6)}
    for name, inbox in inboxes.items():
        hub.submit(request(tokenizer, name, inbox))
    hang_at = {("r1", 0): 0, ("r4", 0): 0}
    assert [HangingEngine(hub, hang_at).run() for _ in range(4)] == [True, True, True, False]
    ends = [outcome(inbox)[0] for inbox in inboxes.values()]
    assert ends == ["length", "error", "length", "length", "error", "length"]


def test_requests_submitted_during_isolation_wait(tokenizer: Tokenizer) -> None:
    hub, channel = Hub(), ScriptedChannel()
    hub.connect("r0", channel)
    for number in range(2):
        hub.submit(request(tokenizer, f"r{number}"))
    hub.disconnect("r0", Loss(is_hang=True))
    hub.submit(request(tokenizer, "r2"))
    channel.take()
    hub.connect("r0", channel)
    for number in range(3):
        hub.submit(request(tokenizer, f"new{number}"))
    for name in ("r2", "r0", "r1"):
        assert asked(channel) == [name]
        hub.receive("r0", channel.step(token(name)))
    assert asked(channel) == ["new0", "new1", "new2"]


def test_only_requests_that_may_be_the_cause_become_suspect(tokenizer: Tokenizer) -> None:
    """Requests that wait in the engine's queue are replayed at once, however many engines die meanwhile."""
    hub, channel, inbox = Hub(), ScriptedChannel(), Inbox()
    waiting = [request(tokenizer, f"waiting{number}", n=2) for number in range(3)]
    for one in (*waiting, request(tokenizer, "in a slot", inbox)):
        hub.submit(one)
    for _ in range(MAX_REPLAYS):
        hub.connect("r0", channel)
        num_sent = len(channel.take())
        hub.receive("r0", EngineOutputs((), IDLE_STATS, num_sent))
        hub.disconnect("r0", Loss(frozenset({request_number("in a slot")})))
        assert [one.suspicion for one in waiting] == [0, 0, 0]
    hub.connect("r0", channel)
    sent = [one.request_id for one in channel.take() if isinstance(one, GenerateRequest)]
    assert sent == ["waiting0", "waiting0"], "one suspect is enough for isolation"
    # The engine may die while it takes a request from its queue of messages: then it is suspect too.
    hub.disconnect("r0", Loss(frozenset()))
    assert [one.suspicion for one in waiting] == [1, 0, 0]


def test_isolation_does_not_wait_forever_for_a_token(tokenizer: Tokenizer) -> None:
    """While the engine computes others, the isolated request may wait for a slot or for its grammar."""
    hub, channel = Hub(), ScriptedChannel()
    for number in range(2):
        hub.submit(request(tokenizer, f"r{number}"))
    hub.connect("r0", channel)
    channel.take()
    hub.disconnect("r0", Loss(is_hang=True))
    hub.connect("r0", channel)
    assert asked(channel) == ["r0"]
    for _ in range(MAX_ISOLATED_STEPS - 1):
        hub.receive("r0", channel.step())
        assert asked(channel) == []
    hub.receive("r0", channel.step())
    assert asked(channel) == ["r1"]


def test_tenants_take_turns_during_isolation(tokenizer: Tokenizer) -> None:
    """A tenant with many requests in flight delays the others by one turn each, also their new requests."""
    hub, channel = Hub(), ScriptedChannel()
    flooding, other, third = Tenant("flooding"), Tenant("other"), Tenant("third")
    hub.connect("r0", channel)
    for number in range(20):
        hub.submit(request(tokenizer, f"flood{number}", tenant=flooding))
    for number in range(2):
        hub.submit(request(tokenizer, f"other{number}", tenant=other))
    hub.disconnect("r0", Loss(is_hang=True))
    channel.take()
    hub.connect("r0", channel)
    order = []
    while len(names := asked(channel)) == 1:
        order += names
        if len(order) == 10:
            hub.submit(request(tokenizer, "third0", tenant=third))
            hub.submit(request(tokenizer, "flood20", tenant=flooding))
            hub.submit(request(tokenizer, "flood21", tenant=flooding))
        hub.receive("r0", channel.step(token(names[0])))
    assert order[:4] == ["flood0", "other0", "flood1", "other1"]
    assert order.index("third0") <= 11
    assert [name for name in order if name.startswith("flood")] == [f"flood{number}" for number in range(20)]
    assert names == ["flood20", "flood21"], "isolation is over"


def test_a_hang_of_a_finished_request_fails_no_other(tokenizer: Tokenizer) -> None:
    hub, channel = Hub(), ScriptedChannel()
    hub.connect("r0", channel)
    for number in range(2):
        hub.submit(request(tokenizer, f"r{number}"))
    hub.disconnect("r0", Loss(is_hang=True, request_id="gone"))
    channel.take()
    hub.connect("r0", channel)
    for number in range(2):
        assert asked(channel) == [f"r{number}"]
        hub.receive("r0", channel.step(token(f"r{number}")))
    assert len(hub) == 2
