"""All requests in flight, over whichever engine can be asked.

submit ---> InFlight ---> channel ---> engine
               |                         |
recipient <-- text <----- receive <------+        when it dies: `disconnect`, then `connect` to the next one,
                                                  which is asked for what is left of every request
"""

import logging
import time
from collections import deque

from octavo.frontend.channel import EngineChannel
from octavo.frontend.in_flight import ENGINE_HUNG, InFlight
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

SUSPICIOUS = 2  # engines in a row that died under a request and had given nothing for it


class Hub:
    """One event loop or one thread owns it. No method waits, so a request is sent, replayed or ended as a
    whole.

    Mostly a new engine is asked for everything at once. But if two engines in a row died under a request and
    had given nothing for it, or one hung and it is not known over whom, some request may be the cause, and
    its neighbours must not end with it. Then all that are in flight go one by one, on trial: the next is
    asked for when the last has got a token for each of its choices. So if the engine dies again, it is plain
    who was on trial, and only that one is blamed. The least suspicious go first. What is submitted meanwhile
    waits for the end of the trials.

    By the law a request that hangs an engine does so again at the same token, which is the first that the
    next engine computes for it: so it hangs two, and then it is ended.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, InFlight] = {}
        self._queue: deque[InFlight] = deque()  # not asked for yet
        self._channel: EngineChannel | None = None  # to the engine that can be asked now
        self._is_wary = False  # until everything in flight has stood its trial
        self._num_trials = 0  # so many at the head of the queue are asked for one by one
        self._on_trial: InFlight | None = None  # or was, until it got its tokens
        self._closed_because: Failure | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def has_grammars(self) -> bool:
        """Some request in flight has one."""
        return any(one.prepared.params.grammar is not None for one in self._by_id.values())

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, in_flight: InFlight) -> None:
        """Also while there is no engine: the request then waits for the next one."""
        self._by_id[in_flight.request_id] = in_flight
        if self._closed_because is not None:
            self._end(in_flight, FinishReason.ERROR, self._closed_because)
            return
        self._queue.append(in_flight)
        self._ask_due()

    def abort(self, request_id: str) -> None:
        """Nobody waits for the request any more. Its pages are free one step later."""
        in_flight = self._by_id.get(request_id)
        if in_flight is not None:
            self._abort(in_flight)

    def end_overdue(self) -> None:
        """Deadlines go on while there is no engine to keep them."""
        now = time.monotonic()
        for in_flight in list(self._by_id.values()):
            deadline = in_flight.deadline
            if not in_flight.is_asked and deadline is not None and deadline <= now:
                self._end(in_flight, FinishReason.DEADLINE)

    def give_up(self, reason: str) -> None:
        """No engine will come any more: whatever is in flight, and whatever is submitted later, ends with
        this error. The first reason given stays."""
        if self._closed_because is None:
            self._closed_because = Failure(FailureCode.ENGINE_FAILED, reason)
        for in_flight in list(self._by_id.values()):
            self._end(in_flight, FinishReason.ERROR, self._closed_because)

    # -- the engine ----------------------------------------------------------------------------------

    def connect(self, channel: EngineChannel) -> None:
        """A new engine can be asked: for what the last one did not finish, and all that comes."""
        self._channel = channel
        self._on_trial = None
        # A trial of many choices takes long.
        self._queue = deque(sorted(self._by_id.values(), key=lambda one: (one.blame, one.num_left)))
        self._is_wary = self._is_wary or any(one.blame >= SUSPICIOUS for one in self._queue)
        self._num_trials = len(self._queue) if self._is_wary else 0
        self._ask_due()

    def disconnect(self) -> None:
        """The engine is dead, or cannot be heard any more."""
        self._channel = None
        for in_flight in self._by_id.values():
            in_flight.lose_engine()

    def blame_hang(self, request_id: str) -> None:
        """The engine that is gone hung. `request_id`: what it worked for, if that was one request alone."""
        on_trial = self._on_trial if self._is_trial_on else None
        guilty = self._by_id.get(request_id) if request_id else on_trial
        if guilty is not None and self._is_wary:
            logger.error("request %s hung the engine: it is ended", guilty.request_id)
            self._end(guilty, FinishReason.ERROR, ENGINE_HUNG)
            self._is_wary = bool(self._by_id)  # there may be another among them
            return
        # Once may have been the machine's fault.
        self._is_wary = True
        whom = "one of several requests" if guilty is None else f"request {guilty.request_id}"
        logger.error("the engine hung over %s: all are tried one by one", whom)

    def receive(self, message: EngineOutputs) -> None:
        """What a step of the engine gave. To be called by whoever runs the channel."""
        for output in message.outputs:
            in_flight = self._by_id.get(output.request_id)
            if in_flight is not None:
                self._deliver(in_flight, output)
        self._ask_due()

    # -- parts ---------------------------------------------------------------------------------------

    def _ask_due(self) -> None:
        while self._queue and self._channel is not None and not self._is_trial_on:
            in_flight = self._queue.popleft()
            self._on_trial = in_flight if self._num_trials else None
            self._num_trials = max(0, self._num_trials - 1)
            if in_flight.request_id not in self._by_id:  # it ended while it waited
                continue
            messages, ended = in_flight.ask()
            for message in messages:
                self._send(message)
            self._deliver_ends(in_flight, ended)
        if self._channel is not None and not self._num_trials and not self._is_trial_on:
            self._is_wary = False

    @property
    def _is_trial_on(self) -> bool:
        tried = self._on_trial
        return tried is not None and not tried.is_fully_proven and tried.request_id in self._by_id

    def _deliver(self, in_flight: InFlight, output: TokenOutput) -> None:
        recipient = in_flight.recipient
        try:
            processed = in_flight.process(output)
        except Exception as error:  # whatever it is, it is this request's alone
            logger.exception("the text of request %s cannot be made", in_flight.request_id)
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
            logger.warning("request %s is not being read: it is ended", in_flight.request_id)
            self._abort(in_flight)

    def _abort(self, in_flight: InFlight) -> None:
        in_flight.stop(None)
        if in_flight.is_asked:
            self._send(Abort(in_flight.request_id))
        else:
            self._end(in_flight, FinishReason.ABORT)

    def _end(self, in_flight: InFlight, reason: FinishReason, failure: Failure | None = None) -> None:
        self._deliver_ends(in_flight, in_flight.end(reason, failure))

    def _deliver_ends(self, in_flight: InFlight, outputs: list[TokenOutput]) -> None:
        """Outputs that no engine gave. Delivering one may end the request: the others are void then."""
        for output in outputs:
            if in_flight.request_id in self._by_id:
                self._deliver(in_flight, output)

    def _forget(self, in_flight: InFlight) -> None:
        del self._by_id[in_flight.request_id]

    def _send(self, message: GenerateRequest | Abort) -> None:
        if self._channel is not None:
            self._channel.send(message)
