"""Commands of the operator to the replicas of a server: drain, add, restart.

They run one after the other, so that no two replicas are drained at the same time.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from octavo.errors import FleetError, OctavoError
from octavo.membership.membership import Membership
from octavo.status import OperationState, OperationStatus

logger = logging.getLogger(__name__)

MAX_ENDED = 16  # operations that have ended and are still listed


class OperationKind(StrEnum):
    DRAIN = "drain"
    ADD = "add"
    RESTART = "restart"  # of all replicas


class AfterDrain(StrEnum):
    RESTART = "restart"  # start a new engine
    REMOVE = "remove"  # the replica is gone


@dataclass
class Operation:
    """Changed by FleetOperations only."""

    number: int
    kind: OperationKind
    replica: str | None = None
    then: AfterDrain | None = None
    state: OperationState = OperationState.QUEUED
    restarted: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    problem: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state in (OperationState.QUEUED, OperationState.RUNNING)

    @property
    def status(self) -> OperationStatus:
        until = time.monotonic() if self.ended is None else self.ended
        return OperationStatus(
            number=self.number,
            kind=self.kind,
            replica=self.replica,
            then=self.then,
            state=self.state,
            restarted=self.restarted,
            seconds=None if self.began is None else round(until - self.began, 3),
            problem=self.problem,
        )

    def note_restarted(self, name: str) -> None:
        self.restarted += (name,)

    def note_name(self, name: str) -> None:
        self.replica = name

    def __str__(self) -> str:
        then = "" if self.then is None else f", then {self.then}"
        return f"{self.kind} {self.replica or ''}".rstrip() + then


class FleetOperations:
    """Owned by the event loop. The methods that add an operation raise FleetError if it cannot succeed."""

    def __init__(self, replicas: Membership) -> None:
        self._replicas = replicas
        self._numbers = itertools.count(1)
        self._operations: list[Operation] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def drain(self, name: str, then: AfterDrain) -> OperationStatus:
        """Move the requests of a replica to others, then restart or remove it."""
        if then is AfterDrain.REMOVE:
            self._replicas.check_remove(name, self._names_of(AfterDrain.REMOVE))
        else:
            self._replicas.check_restart(name)
        if name in self._names_of(AfterDrain.RESTART) + self._names_of(AfterDrain.REMOVE):
            raise FleetError(f"{name} is being drained already: wait until this has ended")
        return self._begin(Operation(next(self._numbers), OperationKind.DRAIN, name, then))

    def add(self) -> OperationStatus:
        queued = [one for one in self._open(OperationKind.ADD) if one.state is OperationState.QUEUED]
        self._replicas.check_add(len(queued))
        return self._begin(Operation(next(self._numbers), OperationKind.ADD))

    def restart(self) -> OperationStatus:
        """Restart all replicas, one after the other."""
        if self._open(OperationKind.RESTART):
            raise FleetError("the replicas are being restarted already: wait until this has ended")
        for replica in self._replicas.replicas:
            self._replicas.check_restart(replica.name)
        return self._begin(Operation(next(self._numbers), OperationKind.RESTART))

    def status(self) -> tuple[OperationStatus, ...]:
        """Return the open operations, and the last ones that have ended."""
        return tuple([operation.status for operation in self._operations])

    async def close(self) -> None:
        """Stop, because the server shuts down: engines that still run finish their requests. May be called
        more than once."""
        self._is_closed = True
        for operation in self._operations:
            if operation.is_open:
                operation.state, operation.problem = OperationState.FAILED, "the server is shutting down"
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # -- parts -----------------------------------------------------------------------------------------------

    def _open(self, kind: OperationKind) -> list[Operation]:
        return [one for one in self._operations if one.is_open and one.kind is kind]

    def _names_of(self, then: AfterDrain) -> list[str]:
        """Return the replicas that are drained now or later."""
        return [one.replica or "" for one in self._open(OperationKind.DRAIN) if one.then is then]

    def _begin(self, operation: Operation) -> OperationStatus:
        if self._is_closed:
            raise FleetError("the server is shutting down")
        ended = [one for one in self._operations if not one.is_open][-MAX_ENDED:]
        self._operations = [*ended, *(one for one in self._operations if one.is_open), operation]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_all(), name="octavo-fleet-operations")
        return operation.status

    async def _run_all(self) -> None:
        while queued := [one for one in self._operations if one.state is OperationState.QUEUED]:
            await self._run(queued[0])

    async def _run(self, operation: Operation) -> None:
        operation.state, operation.began = OperationState.RUNNING, time.monotonic()
        logger.info("fleet operation %d began: %s", operation.number, operation)
        try:
            await self._execute(operation)
        except OctavoError as error:
            operation.problem = str(error)
        except Exception:
            logger.exception("fleet operation %d failed", operation.number)
            operation.problem = "the server failed to do this; see its log"
        operation.ended = time.monotonic()
        seconds = operation.ended - operation.began
        if operation.problem is None:
            operation.state = OperationState.DONE
            logger.info("fleet operation %d is done: %s, %.1f s", operation.number, operation, seconds)
        else:
            operation.state = OperationState.FAILED
            logger.error("fleet operation %d failed: %s: %s", operation.number, operation, operation.problem)

    def _execute(self, operation: Operation) -> Awaitable[object]:
        replicas, name = self._replicas, operation.replica or ""
        steps: dict[tuple[OperationKind, AfterDrain | None], Callable[[], Awaitable[object]]] = {
            (OperationKind.DRAIN, AfterDrain.RESTART): lambda: replicas.restart(name),
            (OperationKind.DRAIN, AfterDrain.REMOVE): lambda: replicas.remove(name),
            (OperationKind.ADD, None): lambda: replicas.add(operation.note_name),
            (OperationKind.RESTART, None): lambda: replicas.replace_all(operation.note_restarted),
        }
        return steps[operation.kind, operation.then]()
