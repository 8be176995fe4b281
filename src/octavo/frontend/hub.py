"""All in-flight requests, and the engine that they are sent to.

submit ---> InFlightRequest ---> channel ---> engine
               |                         |
recipient <-- text <----- receive <------+        when it dies: `disconnect`, then `connect` to the next one,
                                                  to which every unfinished request is replayed
"""

import logging
import time

from octavo.fairness.queue import FairQueue
from octavo.fairness.tenant import Tenant
from octavo.frontend.channel import EngineChannel
from octavo.frontend.in_flight import ENGINE_HUNG, InFlightRequest
from octavo.protocol import (
    Abort,
    EngineOutputs,
    Failure,
    FailureCode,
    FinishReason,
    GenerateRequest,
    TokenOutput,
)

logger = logging.getLogger(__name__)

SUSPECT_AFTER = 2  # engines in a row that a request may have killed, before any output for it
# After so many steps without a token of the isolated request, the next one is sent too. For example, the
# request may wait for a slot, or for a mask of its grammar.
MAX_ISOLATED_STEPS = 64


class Hub:
    """Owned by one event loop or one thread. No method waits, so each changes a request atomically.

    Normally all in-flight requests are replayed to a new engine at once. But a request that was in a slot of
    an engine when it died, or had just been sent to it, and had no output, may be the cause. If this happens
    twice in a row, or an engine hangs, the others must not fail with the cause. Then the hub isolates the
    in-flight requests: it sends them one at a time, each as soon as every choice of the previous one has a
    token. If the engine dies again, only the isolated request is blamed. Tenants take turns, each with its
    least suspect request first, so that nobody waits for all requests of another. Requests submitted
    meanwhile are isolated too, until each of the first ones has had its turn.

    Results are deterministic, so a request that hangs an engine hangs the next one at the same token, which
    is the first one that the new engine computes for it. After the second hang it ends with an error.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, InFlightRequest] = {}
        self._queue: FairQueue[InFlightRequest] = FairQueue()  # not sent yet
        self._channel: EngineChannel | None = None  # to the engine that is ready
        self._is_isolating = False  # requests are sent one at a time
        self._to_isolate: set[str] = set()  # queued requests that must be isolated, by id
        self._isolated: InFlightRequest | None = None  # the request that was last sent alone
        self._num_isolated_steps = 0  # since then
        self._num_sent = self._num_taken = 0  # messages sent to the engine, and those it has queued
        self._closed_because: Failure | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def has_grammars(self) -> bool:
        """Whether any in-flight request has a grammar."""
        return any(one.prepared.params.grammar is not None for one in self._by_id.values())

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, in_flight: InFlightRequest) -> None:
        """Accept a request. Without an engine, the request waits for the next one."""
        self._by_id[in_flight.request_id] = in_flight
        if self._closed_because is not None:
            self._end(in_flight, FinishReason.ERROR, self._closed_because)
            return
        self._enqueue(in_flight)
        self._send_due()

    def abort(self, request_id: str) -> None:
        """Abort a request, for example after a disconnect. Its blocks are free one step later."""
        in_flight = self._by_id.get(request_id)
        if in_flight is not None:
            self._abort(in_flight)

    def end_expired(self) -> None:
        """End requests whose deadline has passed while there is no engine to check it."""
        now = time.monotonic()
        for in_flight in list(self._by_id.values()):
            deadline = in_flight.deadline
            if not in_flight.is_sent and deadline is not None and deadline <= now:
                self._end(in_flight, FinishReason.DEADLINE)

    def give_up(self, reason: str) -> None:
        """End all requests, in flight or submitted later, with this error: there will be no other engine.

        The first reason stays.
        """
        if self._closed_because is None:
            self._closed_because = Failure(FailureCode.ENGINE_FAILED, reason)
        for in_flight in list(self._by_id.values()):
            self._end(in_flight, FinishReason.ERROR, self._closed_because)

    # -- the engine ----------------------------------------------------------------------------------

    def connect(self, channel: EngineChannel) -> None:
        """Use a new engine: replay what the last one did not finish, and send all later requests to it."""
        self._channel = channel
        self._isolated = None
        self._num_sent = self._num_taken = 0
        self._queue = FairQueue()
        # Isolating a request with many choices takes long, so it goes last among its equals.
        for in_flight in sorted(self._by_id.values(), key=lambda one: (one.suspicion, one.num_unfinished)):
            self._enqueue(in_flight)
            self._is_isolating = self._is_isolating or in_flight.suspicion >= SUSPECT_AFTER
        self._to_isolate = set(self._by_id) if self._is_isolating else set()
        self._send_due()

    def disconnect(self, in_slots: frozenset[int] | None = None) -> None:
        """Stop using the engine: it is dead, or its messages cannot be read.

        `in_slots` are the numbers of the requests that it was computing. If they are not known, each of its
        requests may be the cause.
        """
        self._channel = None
        for in_flight in self._by_id.values():
            is_queued = in_flight.last_message <= self._num_taken
            in_flight.lose_engine(
                may_be_cause=in_slots is None or not is_queued or in_flight.number in in_slots
            )

    def report_hang(self, request_id: str) -> None:
        """Handle a hang of the last engine. `request_id`: the only request in its step, else empty."""
        isolated = self._isolated if self._is_isolation_pending else None
        culprit = self._by_id.get(request_id) if request_id else isolated
        if culprit is not None and self._is_isolating:
            logger.error("request %s hung the engine, ending it with an error", culprit.request_id)
            self._end(culprit, FinishReason.ERROR, ENGINE_HUNG)
            self._is_isolating = bool(self._by_id)  # another one may hang the engine too
            return
        # A single hang may be the machine's fault.
        self._is_isolating = True
        cause = "one of several requests" if culprit is None else f"request {culprit.request_id}"
        logger.error("the engine hung while computing %s, isolating all in-flight requests", cause)

    def receive(self, message: EngineOutputs) -> None:
        """Process the outputs of one step. Called by the owner of the channel."""
        self._num_taken = message.num_taken
        self._num_isolated_steps += 1
        for output in message.outputs:
            in_flight = self._by_id.get(output.request_id)
            if in_flight is not None:
                self._deliver(in_flight, output)
        if self._is_isolating:  # otherwise the queue is empty while there is an engine
            self._send_due()

    # -- parts ---------------------------------------------------------------------------------------

    def _enqueue(self, in_flight: InFlightRequest) -> None:
        message = in_flight.prepared.messages[0]
        self._queue.put(Tenant(message.tenant, message.weight), in_flight)

    def _send_due(self) -> None:
        while self._channel is not None and not self._is_isolation_pending:
            entry = self._queue.take()
            if entry is None:
                break
            self._queue.end(entry, 1.0)
            in_flight = entry.item
            self._isolated = in_flight if self._to_isolate else None
            self._to_isolate.discard(in_flight.request_id)
            if in_flight.request_id not in self._by_id:  # ended while it was queued
                continue
            messages, ended = in_flight.prepare_send()
            for message in messages:
                self._send(message)
            self._num_sent += len(messages)
            in_flight.last_message = self._num_sent
            self._num_isolated_steps = 0
            self._deliver_ends(in_flight, ended)
        if self._channel is not None and not self._to_isolate and not self._is_isolation_pending:
            self._is_isolating = False

    @property
    def _is_isolation_pending(self) -> bool:
        isolated = self._isolated
        if isolated is None or self._num_isolated_steps >= MAX_ISOLATED_STEPS:
            return False
        return not isolated.has_all_outputs and isolated.request_id in self._by_id

    def _deliver(self, in_flight: InFlightRequest, output: TokenOutput) -> None:
        recipient = in_flight.recipient
        try:
            processed = in_flight.process(output)
        except Exception as error:  # it must end only this request
            logger.exception("failed to produce the text of request %s", in_flight.request_id)
            self._send(Abort(in_flight.request_id))
            self._forget(in_flight)
            recipient.put(error)
            return
        if processed.abort is not None:
            self._send(processed.abort)
        if processed.delta is not None:
            recipient.put(processed.delta)
        if processed.finished is not None:
            self._forget(in_flight)
            recipient.put(processed.finished)
        elif recipient.is_full and not in_flight.is_stopped:
            logger.warning("output of request %s is not being read, aborting it", in_flight.request_id)
            self._abort(in_flight)

    def _abort(self, in_flight: InFlightRequest) -> None:
        in_flight.stop(None)
        if in_flight.is_sent:
            self._send(Abort(in_flight.request_id))
        else:
            self._end(in_flight, FinishReason.ABORT)

    def _end(self, in_flight: InFlightRequest, reason: FinishReason, failure: Failure | None = None) -> None:
        self._deliver_ends(in_flight, in_flight.end(reason, failure))

    def _deliver_ends(self, in_flight: InFlightRequest, outputs: list[TokenOutput]) -> None:
        """Deliver outputs that are not from an engine. If one ends the request, the others are dropped."""
        for output in outputs:
            if in_flight.request_id in self._by_id:
                self._deliver(in_flight, output)

    def _forget(self, in_flight: InFlightRequest) -> None:
        del self._by_id[in_flight.request_id]

    def _send(self, message: GenerateRequest | Abort) -> None:
        if self._channel is not None:
            self._channel.send(message)
