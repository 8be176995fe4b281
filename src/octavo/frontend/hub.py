"""All in-flight requests, and the replicas that they are sent to.

submit ---> InFlightRequest ---> ReplicaLink ---> channel ---> engine
               |                                                 |
recipient <-- text <------------ receive <-----------------------+

A replica is a place for one engine at a time. When the engine dies, hangs or is drained, its requests move to
other replicas, or wait for the next engine. Each move is a new attempt, which continues with the next token.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from octavo.config import counted
from octavo.fleet.router import Route, Router, with_min_load
from octavo.frontend.audits import Audits
from octavo.frontend.channel import EngineChannel
from octavo.frontend.draining import next_to_move
from octavo.frontend.in_flight import ENGINE_HUNG, InFlightRequest
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.frontend.new_requests import NewRequests
from octavo.frontend.quarantine import Quarantine
from octavo.frontend.replica_link import ReplicaLink
from octavo.observe.audit_counts import AuditCounts
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    Failure,
    FailureCode,
    FinishReason,
    PrefixList,
    TokenOutput,
)

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 0.01


class Hub:
    """Owned by one event loop or one thread. No method waits, so each changes a request atomically.

    A new request is sent to the replica with the lowest cost, once that has credit for it (`ReplicaLink`);
    until then it waits in the front end. A request that moves is sent at once. But one that was in a slot
    of an engine when it died, or had just been sent to it, and had no output, may be the cause. If this
    happens twice in a row, or it was in a step that hung, it is a suspect: it waits in quarantine, so that
    the others do not fail with it. While no replica is usable except the one in quarantine, all requests take
    their turns there.

    Results are deterministic, so a request that hangs an engine hangs the next one at the same token, which
    is the first one that the new engine computes for it. If that happens in quarantine, it ends with an
    error.
    """

    def __init__(self, router: Router | None = None, audits: Audits | None = None) -> None:
        self._router = router or Router()
        self._audits = audits or Audits()
        self._by_id: dict[str, InFlightRequest] = {}
        self._links: dict[str, ReplicaLink] = {}
        self._new = NewRequests(self._links, is_open=self._is_open, route=self._route, send=self._send_to)
        self._expire_at = 0.0  # when deadlines are checked next
        # Requests that no replica has any more, or that should move away from the one that has them.
        self._waiting: dict[str, InFlightRequest] = {}  # by id, in the order in which they are sent
        self._quarantine = Quarantine(self._by_id.__contains__)
        self._closed_because: Failure | None = None
        self.num_moves = 0  # requests that were sent to an engine after another one had begun with them

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_unsent(self) -> int:  # sequences that no engine has seen yet
        return sum(len(in_flight.prepared.messages) for in_flight in self._new)

    @property
    def audit_counts(self) -> AuditCounts:
        return self._audits.counts

    @property
    def has_grammars(self) -> bool:
        """Whether any in-flight request has a grammar."""
        return any(one.prepared.params.grammar is not None for one in self._by_id.values())

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, in_flight: InFlightRequest) -> None:
        """Accept a request. Without a usable replica, the request waits for one."""
        self._by_id[in_flight.request_id] = in_flight
        if self._closed_because is not None:
            self._end(in_flight, FinishReason.ERROR, self._closed_because)
            return
        self._new.put(in_flight)
        if len(self._new):  # perhaps there is only the replica in quarantine
            self._send_due()

    def abort(self, request_id: str) -> None:
        """Abort a request, for example after a disconnect. Its blocks are free one step later."""
        in_flight = self._by_id.get(request_id)
        if in_flight is not None:
            self._abort(in_flight)

    def end_expired(self) -> None:
        """End requests whose deadline has passed while there is no engine to check it. Every supervisor calls
        this often; once in EXPIRY_SECONDS is enough for all."""
        now = time.monotonic()
        if now < self._expire_at:
            return
        self._expire_at = now + EXPIRY_SECONDS
        for in_flight in (*self._new.expired(now), *self._waiting.values(), *self._quarantine.waiting()):
            deadline = in_flight.deadline
            if deadline is not None and deadline <= now and in_flight.request_id in self._by_id:
                self._release(in_flight)
                self._end(in_flight, FinishReason.DEADLINE)

    def give_up(self, reason: str) -> None:
        """End all requests, in flight or submitted later, with this error: there will be no other engine.

        The first reason stays.
        """
        if self._closed_because is None:
            self._closed_because = Failure(FailureCode.ENGINE_FAILED, reason)
        for in_flight in list(self._by_id.values()):
            self._end(in_flight, FinishReason.ERROR, self._closed_because)

    # -- replicas ------------------------------------------------------------------------------------

    def expect(self, replica: str) -> ReplicaLink:
        """Add a replica, whose engine will connect later. Return what is known about it, to be read only."""
        if replica not in self._links:
            self._links[replica] = ReplicaLink(replica)
            self._router.add(replica, self._links[replica])
        return self._links[replica]

    def dismiss(self, replica: str, reason: str) -> None:
        """Remove a replica: no engine will be started there again. Without the last one, give up."""
        self.remove(replica)
        if not self._links:
            self.give_up(reason)

    def remove(self, replica: str) -> None:
        """Remove a replica. Its requests wait for others, which may come later."""
        self.disconnect(replica, NOBODYS_FAULT)
        self._links.pop(replica, None)
        self._router.remove(replica)
        self._send_due()

    def connect(
        self,
        replica: str,
        channel: EngineChannel,
        facts: EngineFacts | None = None,
        ask_prefixes: Callable[[], None] = lambda: None,
    ) -> None:
        """Use a new engine at this replica.

        Without `facts`, it may be sent any number of prompts at once, and its cache is not considered.
        `ask_prefixes` asks it for a list, which the owner of the channel passes to `receive_prefixes`.
        """
        self.expect(replica)
        self._links[replica].connect(channel, facts, ask_prefixes)
        if facts is not None and facts.has_prefixes:
            self._router.connect(replica, facts.system_fingerprint, facts.block_size, facts.num_blocks)
            self._ask_prefixes()
        if self._quarantine.needs_replica:  # this one is empty, so a suspect can harm no other request
            self._begin_quarantine(replica)
        self._send_due()
        self._new.fill(replica)

    def disconnect(self, replica: str, loss: Loss) -> None:
        """Stop using the engine of a replica: it is dead, or its messages cannot be read."""
        link = self._links.get(replica)
        if link is None or link.channel is None:
            return
        self._drop_audits(link)
        link.channel = None
        self._router.disconnect(replica)
        self._let_stay(replica)
        was_in_quarantine = self._quarantine.replica == replica
        isolated = self._quarantine.lose_replica() if was_in_quarantine else None
        lost = [self._by_id[request_id] for request_id in link.requests]
        for in_flight in lost:
            link.forget(in_flight.request_id)
            may_be_cause = not loss.is_blameless and link.may_have_computed(in_flight, loss.in_slots)
            in_flight.lose_engine(may_be_cause=may_be_cause)
        if loss.is_hang:
            only = next((one for one in lost if one.request_id == loss.request_id), None)
            culprit = None if loss.request_id or loss.is_shared else isolated
            self._judge_hang(replica, only or culprit, was_in_quarantine=was_in_quarantine)
        for in_flight in lost:
            if in_flight.request_id not in self._by_id:  # it was the cause
                continue
            if loss.is_hang or in_flight.is_suspect:
                self._quarantine.isolate(in_flight)
            else:
                self._waiting[in_flight.request_id] = in_flight
        self._send_due()

    def suspect(self, replica: str, in_slots: frozenset[int] | None) -> None:
        """Move the requests of a replica whose engine does not respond, as far as others are usable.

        If the engine responds after all, `restore` uses it again; requests that have not moved stay there.
        """
        link = self._links[replica]
        if link.channel is not None and not link.is_suspected:
            link.is_suspected, link.in_slots = True, in_slots
            link.num_suspicions += 1
            self._move_all(link)

    def drain(self, replica: str) -> None:
        """Move the requests of a replica, as far as others are usable. Its engine gets no others."""
        self._move_all(self._begin_drain(replica))

    def drain_some(self, replica: str, seconds: float) -> None:
        """Move some requests of a replica: see `draining`. Its engine computes the rest, and gets no others.
        Call it until the replica has none.
        """
        link = self._begin_drain(replica)
        self._drop_audits(link)
        present = [one for one in link.moved if one.request_id in self._by_id and not one.is_suspect]
        moved = [one for one in present if one.is_paused_beside(replica)]
        if moved and len(moved) == len(link.moved):
            return  # nothing has changed
        others = [self._links[name] for name in self._list_open()]
        requests = [self._by_id[key] for key in link.requests]
        moving = next_to_move(requests, moved, others, seconds)
        self._waiting |= {one.request_id: one for one in moving}
        link.moved = [*moved, *moving]
        self._send_due()

    def _begin_drain(self, replica: str) -> ReplicaLink:
        link = self._links[replica]
        if not link.is_draining:
            link.is_draining, link.moved = True, []
        if self._quarantine.replica == replica:
            isolated = self._quarantine.lose_replica()
            if isolated is not None:
                self._release(isolated)
                self._quarantine.isolate(isolated)
        return link

    def end_drain(self, replica: str) -> None:
        """Send requests to a replica again that was draining. Those that it still has stay there."""
        link = self._links[replica]
        link.is_draining, link.moved = False, []
        if not link.is_suspected:
            self._let_stay(replica)
        self._send_due()
        self._new.fill(replica)

    def restore(self, replica: str) -> None:
        """Use a replica again that was suspected. If it is draining, its requests still move away."""
        link = self._links[replica]
        if link.is_suspected:
            link.is_suspected = False
            if not link.is_draining:
                self._let_stay(replica)
            self._send_due()
            self._new.fill(replica)

    def is_usable(self, replica: str) -> bool:
        """Whether requests may be sent to a replica now."""
        return replica in self._links and self._links[replica].is_usable

    @property
    def usable(self) -> list[str]:
        """The names of the replicas that requests may be sent to now."""
        return [link.name for link in self._links.values() if link.is_usable]

    @property
    def num_replicas(self) -> int:
        return len(self._links)

    def link(self, replica: str) -> ReplicaLink | None:
        """Return what is known about a replica, to be read only; None before `expect`, after `dismiss`."""
        return self._links.get(replica)

    def request_ids(self, replica: str) -> list[str]:
        """Return the ids of the requests that a replica has."""
        return list(self._links[replica].requests)

    def receive(self, replica: str, message: EngineOutputs) -> None:
        """Process the outputs of one step. Called by the owner of the channel."""
        link = self._links[replica]
        link.num_taken, link.stats = message.num_taken, message.stats
        if message.prefixes is not None and self._router.prefixes is not None:
            change = message.prefixes
            self._router.prefixes.change(replica, change.sequence, change.added, change.removed)
            self._ask_prefixes()
        for output in message.outputs:
            in_flight = self._by_id.get(output.request_id)
            # An engine may still send outputs of a request that has moved away.
            if in_flight is None or in_flight.replica != replica or not in_flight.is_current(output):
                continue
            link.note_output(output.request_id)
            if in_flight.expects(output):
                self._deliver(in_flight, output)
            else:
                logger.error("outputs of request %s are missing, sending it again", in_flight.request_id)
                self._release(in_flight)
                self._waiting[in_flight.request_id] = in_flight
        if self._quarantine.replica == replica:
            self._quarantine.note_step()
        if self._quarantine.replica is not None or self._waiting:
            self._send_due()
        if len(self._new) and link.has_new_room:
            self._new.fill(replica)

    def receive_prefixes(self, replica: str, prefixes: PrefixList) -> None:
        """Process the list of prefixes that a replica was asked for."""
        if self._router.prefixes is not None:
            self._router.prefixes.replace(replica, prefixes.sequence, prefixes.keys)

    # -- where requests go -----------------------------------------------------------------------------

    def _send_due(self) -> None:
        """Send every request that can be sent, except new ones that wait for room."""
        links = self._links.values()
        if self._quarantine.needs_replica and links and all(link.is_usable for link in links):
            self._begin_quarantine(with_min_load({link.name: link.load for link in links}, ""))
        while self._waiting and self._has_open():
            in_flight = self._waiting.pop(next(iter(self._waiting)))
            self._release(in_flight)
            if in_flight.is_suspect:
                self._quarantine.isolate(in_flight)
            else:
                route = self._route(in_flight)
                assert route is not None, "a replica is open"
                self._send_to(in_flight, route)
        self._new.place_again()
        quarantined = self._links.get(self._quarantine.replica or "")
        if quarantined is None or not quarantined.is_usable:
            return
        for in_flight in [] if self._has_open() else self._take_waiting():
            self._release(in_flight)
            if in_flight.is_suspect:
                self._quarantine.isolate(in_flight)
            else:
                self._quarantine.join(in_flight)
        while (in_flight_alone := self._quarantine.take()) is not None:
            self._ask(quarantined.name, in_flight_alone, in_flight_alone.num_tokens)

    def _is_open(self, replica: str) -> bool:
        """Whether any request may be sent to a replica."""
        return self.is_usable(replica) and replica != self._quarantine.replica

    def _has_open(self) -> bool:
        return any(map(self._is_open, self._links))

    def _list_open(self) -> list[str]:
        return [replica for replica in self._links if self._is_open(replica)]

    def _route(self, in_flight: InFlightRequest) -> Route | None:
        """Return the best of the replicas that any request may be sent to; None if there are none."""
        keys = in_flight.block_keys(self._router.keys)
        return self._router.choose(in_flight.request_id, in_flight.size, keys, self._quarantine.replica)

    def _send_to(self, in_flight: InFlightRequest, route: Route) -> None:
        self._ask(route.replica, in_flight, in_flight.num_tokens - route.num_cached)
        self._router.promise(route.replica, in_flight.block_keys(self._router.keys))

    def _take_waiting(self) -> list[InFlightRequest]:
        """Remove and return all requests that wait for a replica."""
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values(), *self._new.take_all()]

    def _ask_prefixes(self) -> None:
        if self._router.prefixes is not None:
            for replica in self._router.prefixes.take_to_ask():
                self._links[replica].ask_prefixes()

    def _begin_quarantine(self, replica: str) -> None:
        others = [link for link in self._links.values() if link.is_usable and link.name != replica]
        waiting = [] if others else self._take_waiting()
        for in_flight in waiting:
            self._release(in_flight)
        self._quarantine.begin(replica, waiting)
        logger.warning("isolating %s on %s", counted(len(self._quarantine), "request"), replica)

    def _ask(self, replica: str, in_flight: InFlightRequest, num_missing: int) -> None:
        """Send a request to a replica that lacks so many of its tokens."""
        messages, ended = in_flight.prepare_send(replica)
        if messages:
            self._links[replica].ask(in_flight, messages, num_missing)
            if in_flight.attempt > 0:
                self._count_move(in_flight.last_replica, replica)
        self._deliver_ends(in_flight, ended)

    def _count_move(self, left: str | None, replica: str) -> None:
        self.num_moves += 1
        self._links[replica].num_moves_in += 1
        if left in self._links:
            self._links[left].num_moves_out += 1

    def _move_all(self, link: ReplicaLink) -> None:
        """Let the requests of a replica wait for others. The isolated one stays: it may be the cause."""
        self._let_stay(link.name)
        self._drop_audits(link)
        isolated = self._quarantine.pending if self._quarantine.replica == link.name else None
        moving = {request_id: self._by_id[request_id] for request_id in link.requests}
        if isolated is not None:
            moving.pop(isolated.request_id, None)
        self._waiting |= moving
        self._send_due()

    def _drop_audits(self, link: ReplicaLink) -> None:
        """Forget the audits that a replica computes: after a move, they would show nothing."""
        for in_flight in [self._by_id[key] for key in link.requests if self._audits.is_audit(key)]:
            self._send(in_flight, Abort(in_flight.request_id))
            self._forget(in_flight)

    def _let_stay(self, replica: str) -> None:
        """Do not move the requests that this replica still has."""
        self._waiting = {key: one for key, one in self._waiting.items() if one.replica != replica}

    def _release(self, in_flight: InFlightRequest) -> None:
        """Take a request away from the replica that has it, if any."""
        if in_flight.replica is None:
            return
        link = self._links[in_flight.replica]
        self._send(in_flight, Abort(in_flight.request_id))
        link.forget(in_flight.request_id)
        may_be_cause = link.is_suspected and (link.in_slots is None or in_flight.number in link.in_slots)
        in_flight.lose_engine(may_be_cause=may_be_cause, is_hang=True)

    def _judge_hang(self, replica: str, culprit: InFlightRequest | None, *, was_in_quarantine: bool) -> None:
        if culprit is not None and was_in_quarantine:
            logger.error(
                "request %s hung the engine of %s, ending it with an error", culprit.request_id, replica
            )
            self._end(culprit, FinishReason.ERROR, ENGINE_HUNG)
            return
        # A single hang may be the machine's fault.
        cause = "one of several requests" if culprit is None else f"request {culprit.request_id}"
        logger.error("the engine of %s hung while computing %s, isolating its requests", replica, cause)

    # -- outputs -----------------------------------------------------------------------------------------

    def _deliver(self, in_flight: InFlightRequest, output: TokenOutput) -> None:
        recipient = in_flight.recipient
        try:
            processed = in_flight.process(output)
        except Exception as error:  # it must end only this request
            logger.exception("failed to produce the text of request %s", in_flight.request_id)
            self._send(in_flight, Abort(in_flight.request_id))
            self._forget(in_flight)
            recipient.put(error)
            return
        if processed.abort is not None:
            self._send(in_flight, processed.abort)
        if processed.before is not None:
            recipient.put(processed.before)
        if processed.delta is not None:
            recipient.put(processed.delta)
        if processed.finished is not None:
            asked = self._audits.note_end(in_flight, in_flight.replica, processed.finished, self._list_open)
            self._forget(in_flight)
            recipient.put(processed.finished)
            self._audit(asked)
        elif recipient.is_full and not in_flight.is_stopped:
            logger.warning("output of request %s is not being read, aborting it", in_flight.request_id)
            self._abort(in_flight)

    def _audit(self, asked: tuple[str, InFlightRequest] | None) -> None:
        if asked is not None:
            replica, in_flight = asked
            self._by_id[in_flight.request_id] = in_flight
            self._ask(replica, in_flight, 0)  # it is behind the requests of clients, so it needs no credit

    def _abort(self, in_flight: InFlightRequest) -> None:
        in_flight.stop(None)
        if in_flight.replica is not None:
            self._send(in_flight, Abort(in_flight.request_id))
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
        self._waiting.pop(in_flight.request_id, None)
        self._new.end(in_flight.request_id, in_flight.num_generated)
        self._audits.forget(in_flight.request_id)
        if in_flight.replica is not None:
            self._links[in_flight.replica].forget(in_flight.request_id)

    def _send(self, in_flight: InFlightRequest, abort: Abort) -> None:
        if in_flight.replica is not None:
            numbered = msgspec.structs.replace(abort, attempt=in_flight.attempt)
            self._links[in_flight.replica].send(numbered)
