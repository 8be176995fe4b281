"""Audits: some requests are computed again on another replica, and the answers are compared bit for bit.

Answers do not depend on the replica. So if two differ, one replica computes wrong results, for example
because a bit in its memory has flipped. A third replica shows which one:

    r0: A    r1: A              equal
    r0: A    r1: B    r2: A     r1 is wrong
    r0: A    r1: B    r2: C     nobody knows: all three are named
    r0: A    r1: B              nobody knows: there is no third replica
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from octavo.fleet.hashing import hashed
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import RequestOutput
from octavo.frontend.updates import Update
from octavo.observe.audit_counts import AuditCounts
from octavo.protocol import TokenLogprob

logger = logging.getLogger(__name__)

MAX_AUDITS = 4  # at a time; others are left out, so that audits never fill the engines
TENANT = "(audit)"  # no client is charged for an audit
RANK = 1 << 40  # behind all requests of clients, so that they never wait or give way
COMPARED = ("stop", "length", "tool_calls")  # finish reasons; others do not depend on the request alone

Answer = tuple[
    tuple[TokenLogprob, ...] | None,
    tuple[tuple[tuple[int, ...], tuple[TokenLogprob, ...] | None, str, str], ...],
]


class Nobody:
    """A recipient that ignores everything: the hub passes the result of an audit to `Audits`."""

    is_full = False

    def put(self, update: Update | Exception) -> None:
        pass


@dataclass
class Audit:
    prepared: PreparedRequest  # of the client's request
    answers: dict[str, Answer]  # by replica


class Audits:
    """Owned by Hub."""

    def __init__(self, rate: float = 0.0) -> None:
        """`rate` is the part of all requests that is computed again, from 0 to 1."""
        self._rate = rate
        self._open: dict[str, Audit] = {}  # by the id of the request that is computed now
        self.counts = AuditCounts()

    def note_end(
        self,
        in_flight: InFlightRequest,
        replica: str | None,
        result: RequestOutput,
        list_usable: Callable[[], list[str]],
    ) -> tuple[str, InFlightRequest] | None:
        """Note that a request has ended. Return a request to send to a replica, if there is one."""
        if not self._rate:
            return None
        audit = self._open.pop(in_flight.request_id, None)
        if audit is None and not _is_chosen(in_flight.request_id, self._rate):
            return None
        # After a move, no single replica has computed the answer.
        if replica is None or in_flight.attempt > 0 or not _is_comparable(result):
            return None
        audit = audit or Audit(in_flight.prepared, {})
        audit.answers[replica] = _answer(result)
        others = sorted(set(list_usable()) - audit.answers.keys())
        if len(audit.answers) > 1 and self._is_decided(audit, has_others=bool(others)):
            return None
        return self._next(audit, in_flight, others)

    def is_audit(self, request_id: str) -> bool:
        return request_id in self._open

    def forget(self, request_id: str) -> None:
        """Forget the audit that a request belongs to, if any: it has no result."""
        self._open.pop(request_id, None)

    def _next(
        self, audit: Audit, in_flight: InFlightRequest, others: list[str]
    ) -> tuple[str, InFlightRequest] | None:
        if not others or len(self._open) >= MAX_AUDITS:
            self.counts.num_left_out += 1
            return None
        name = f"audit{len(audit.answers)}-{audit.prepared.request_id}"
        messages = tuple(
            msgspec.structs.replace(
                message, request_id=name, tenant=TENANT, weight=1.0, rank=RANK, priority=0, deadline=None
            )
            for message in audit.prepared.messages
        )
        prepared = replace(audit.prepared, request_id=name, messages=messages)
        self._open[name] = audit
        return others[hashed(name) % len(others)], in_flight.again(prepared, Nobody())

    def _is_decided(self, audit: Audit, *, has_others: bool) -> bool:
        """Count the answers so far. Return False if another one is needed to say which replica is wrong."""
        answers = Counter(audit.answers.values())
        if len(answers) > 1 and len(audit.answers) == 2 and has_others:
            return False
        self.counts.num_compared += 1
        if len(answers) > 1:
            self._report(audit, answers)
        return True

    def _report(self, audit: Audit, answers: Counter[Answer]) -> None:
        request_id = audit.prepared.request_id
        right, count = answers.most_common(1)[0]
        wrong = [name for name, answer in audit.answers.items() if count == 1 or answer != right]
        for name in wrong:
            self.counts.num_wrong[name] += 1
        if count > 1:
            self.counts.num_outvoted[wrong[0]] += 1
            logger.error(
                "audit: the answer of %s to request %s differs from that of two other replicas: its memory"
                " or its processor may be faulty. Replace its engine: octavo fleet drain %s",
                wrong[0],
                request_id,
                wrong[0],
            )
        else:
            logger.error(
                "audit: the answers of %s to request %s all differ. With three replicas or more, the next"
                " audits can show which one is wrong: octavo fleet add",
                " and ".join(wrong),
                request_id,
            )


def _is_comparable(result: RequestOutput) -> bool:
    return all(choice.finish_reason in COMPARED for choice in result.choices)


def _answer(result: RequestOutput) -> Answer:
    choices = [(one.token_ids, one.logprobs, one.finish_reason, one.text) for one in result.choices]
    return result.prompt_logprobs, tuple(choices)


def _is_chosen(request_id: str, rate: float) -> bool:
    return hashed(request_id) < rate * (1 << 64)
