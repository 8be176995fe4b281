"""What the hub knows about one replica."""

from octavo.frontend.channel import EngineChannel
from octavo.frontend.in_flight import InFlightRequest
from octavo.protocol import Abort, GenerateRequest


class ReplicaLink:
    """Changed by Hub only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.channel: EngineChannel | None = None  # to an engine that is ready
        self.is_suspected = False  # its engine does not respond, so its requests move to other replicas
        self.is_draining = False  # its requests move to other replicas, and it gets no new ones
        self.in_slots: frozenset[int] | None = None  # see `Loss`; as of when it was suspected
        self.requests: dict[str, int] = {}  # ids of the requests that it has; how many choices it was sent
        self.load = 0  # the sum of these
        self._num_sent = self.num_taken = 0  # messages sent to the engine, and those it has queued

    @property
    def is_usable(self) -> bool:
        return self.channel is not None and not self.is_suspected and not self.is_draining

    def connect(self, channel: EngineChannel) -> None:
        self.channel, self.is_suspected, self.is_draining = channel, False, False
        self._num_sent = self.num_taken = 0

    def send(self, message: GenerateRequest | Abort) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def ask(self, in_flight: InFlightRequest, messages: list[GenerateRequest]) -> None:
        for message in messages:
            self.send(message)
        self._num_sent += len(messages)
        in_flight.last_message = self._num_sent
        self.requests[in_flight.request_id] = len(messages)
        self.load += len(messages)

    def forget(self, request_id: str) -> None:
        self.load -= self.requests.pop(request_id, 0)

    def may_have_computed(self, in_flight: InFlightRequest, in_slots: frozenset[int] | None) -> bool:
        """Whether the engine had begun with the request, or may have been taking it from its socket."""
        is_queued = in_flight.last_message <= self.num_taken
        return in_slots is None or not is_queued or in_flight.number in in_slots
