"""What the hub knows about one replica."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.frontend.channel import EngineChannel
from octavo.frontend.in_flight import InFlightRequest
from octavo.protocol import Abort, EngineFacts, EngineStats, GenerateRequest

Line = tuple[str, int]  # tenant and rank
# Requests of one line that a replica without credit is sent ahead of their turn, each more urgent than those
# before it: the engine may preempt others for it.
MAX_URGENT = 4


@dataclass(frozen=True)
class Sent:
    """A request that a replica has."""

    num_choices: int
    num_prompt_tokens: int  # that the replica has to compute
    line: Line
    priority: int


class ReplicaLink:
    """Changed by Hub only. The router reads it: see `fleet.cost.ReplicaLoad`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.channel: EngineChannel | None = None  # to an engine that is ready
        self.is_suspected = False  # its engine does not respond, so its requests move to other replicas
        self.is_draining = False  # its requests move to other replicas, and it gets no new ones
        self.in_slots: frozenset[int] | None = None  # see `Loss`; as of when it was suspected
        self.requests: dict[str, Sent] = {}  # by id
        self.load = 0  # choices of these requests
        self._unstarted: dict[str, Sent] = {}  # requests without an output yet
        self._num_unstarted_tokens = 0  # of these requests
        self._lines: dict[Line, list[int]] = {}  # priorities of these requests
        self._credit = 0  # see `EngineFacts.prompt_credit`
        self.has_new_room = False  # perhaps, for a request that waits; until NewRequests looks
        self.num_waiting_tokens = 0  # of prompts that wait for this replica; changed by NewRequests
        self.moved: list[InFlightRequest] = []  # away from here, by a drain, and perhaps not continued yet
        self.num_suspicions = 0
        self.num_moves_in = 0  # requests that continued here after another engine had begun with them
        self.num_moves_out = 0  # requests that an engine here had begun with, and another one continued
        self.stats: EngineStats | None = None  # as of the last message
        self.ask_prefixes: Callable[[], None] = lambda: None  # asks the engine for a `PrefixList`
        self._num_sent = self.num_taken = 0  # messages sent to the engine, and those it has queued

    @property
    def is_usable(self) -> bool:
        return self.channel is not None and not self.is_suspected and not self.is_draining

    @property
    def num_sequences(self) -> int:
        # Other front ends may use the engine, too.
        return self.load if self.stats is None else max(self.load, self.stats.num_running)

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_unstarted_tokens + self.num_waiting_tokens

    @property
    def has_credit(self) -> bool:
        """Whether the engine may be sent more prompts before it begins with those that it has."""
        return self._credit == 0 or self._num_unstarted_tokens < self._credit

    @property
    def blocks_available(self) -> int | None:
        return None if self.stats is None else self.stats.blocks_free + self.stats.blocks_idle

    @property
    def seconds_per_prompt_token(self) -> float:
        return 0.0 if self.stats is None else self.stats.seconds_per_prompt_token

    @property
    def seconds_per_sequence(self) -> float:
        return 0.0 if self.stats is None else self.stats.seconds_per_sequence

    def connect(
        self, channel: EngineChannel, facts: EngineFacts | None, ask_prefixes: Callable[[], None]
    ) -> None:
        self.channel, self.is_suspected, self.is_draining = channel, False, False
        self._num_sent = self.num_taken = 0
        self._credit = 0 if facts is None else facts.prompt_credit
        self.stats = None
        self.moved = []
        self.ask_prefixes = ask_prefixes

    def send(self, message: GenerateRequest | Abort) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def has_room(self, line: Line, priority: int) -> bool:
        """Whether a new request may be sent: there is credit, or it would be the first of its line. So the
        engine, which serves tenants by its own accounts, always knows the next request of each."""
        ahead = self._lines.get(line)
        return not ahead or self.has_credit or (len(ahead) < MAX_URGENT and priority < min(ahead))

    def ask(
        self, in_flight: InFlightRequest, messages: list[GenerateRequest], num_prompt_tokens: int
    ) -> None:
        for message in messages:
            self.send(message)
        self._num_sent += len(messages)
        in_flight.last_message = self._num_sent
        sent = Sent(len(messages), num_prompt_tokens, line_of(in_flight), messages[0].priority)
        self.requests[in_flight.request_id] = self._unstarted[in_flight.request_id] = sent
        self.load += len(messages)
        self._num_unstarted_tokens += num_prompt_tokens
        self._lines.setdefault(sent.line, []).append(sent.priority)

    def note_output(self, request_id: str) -> None:
        """Note that the engine has begun to answer a request."""
        sent = self._unstarted.pop(request_id, None)
        if sent is None:
            return
        self.has_new_room = True
        self._num_unstarted_tokens -= sent.num_prompt_tokens
        self._lines[sent.line].remove(sent.priority)
        if not self._lines[sent.line]:
            del self._lines[sent.line]

    def forget(self, request_id: str) -> None:
        self.note_output(request_id)
        sent = self.requests.pop(request_id, None)
        if sent is not None:
            self.load -= sent.num_choices

    def may_have_computed(self, in_flight: InFlightRequest, in_slots: frozenset[int] | None) -> bool:
        """Whether the engine had begun with the request, or may have been taking it from its socket."""
        is_queued = in_flight.last_message <= self.num_taken
        return in_slots is None or not is_queued or in_flight.number in in_slots


def line_of(in_flight: InFlightRequest) -> Line:
    message = in_flight.prepared.messages[0]
    return message.tenant, message.rank
