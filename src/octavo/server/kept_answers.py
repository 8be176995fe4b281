"""Answers kept for requests that repeat an Idempotency-Key: being computed, or complete for ten minutes.

Kept answers are bounded in bytes. When room is needed, the tenant that uses the most loses its least recently
used answer, so no tenant can displace the answers of tenants that use less than itself.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum

from octavo.server.http.errors import ApiError
from octavo.server.identity import ResponseIdentity

KEPT_SECONDS = 600.0  # after an answer is complete
MAX_SHARE = 8  # one answer may use 1/MAX_SHARE of the bytes
ENTRY_BYTES = 1 << 10  # memory for an answer without its content
PIECE_BYTES = 64  # memory for a piece of content, in addition to its bytes

KeptName = tuple[bytes, str]  # the binding of the API key, and the idempotency key


class AnswerState(Enum):
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"  # with an error, or because the client disconnected


class KeptAnswer:
    """One answer, and the requests that follow it. Changed by `KeptAnswers` and by the request it answers."""

    def __init__(
        self,
        store: "KeptAnswers",
        name: KeptName,
        tenant: str,
        body_digest: bytes,
        identity: ResponseIdentity,
    ) -> None:
        self._store = store
        self.name = name
        self.tenant = tenant
        self.body_digest = body_digest
        self.identity = identity
        self.state = AnswerState.RUNNING
        self.pieces: list[bytes] | None = []  # None: the answer is too large to keep
        self.num_bytes = ENTRY_BYTES
        self.has_begun = False  # the response has a status, so followers send theirs
        self.has_end = False  # the last piece is the explicit end, of an answer or of a failure
        self.num_followers = 0
        self._changed = asyncio.Event()

    # -- the request that computes the answer ------------------------------------------------------------

    def begin(self) -> None:
        self.has_begun = True
        self._notify()

    def add(self, piece: bytes) -> None:
        if self.pieces is not None and self._store.grow(self, len(piece) + PIECE_BYTES):
            self.pieces.append(piece)
        self._notify()

    def end(self, *, has_failed: bool = False) -> None:
        """No piece follows. After a failure, the answer is forgotten."""
        self.has_end = True
        if has_failed:
            self.fail()
            return
        self.state = AnswerState.COMPLETE
        self._store.keep(self)
        self._notify()

    def fail(self) -> None:
        """Forget the answer, unless it is complete. Followers get what there is of it, or compute it."""
        if self.state is AnswerState.RUNNING:
            self.state = AnswerState.FAILED
            self._store.forget(self)
            self._notify()

    def drop_content(self) -> None:
        self.pieces = None
        self._notify()

    async def until_unfollowed(self) -> None:
        while self.num_followers:
            await self.change()

    # -- the requests that follow it ---------------------------------------------------------------------

    def join(self) -> None:
        self.num_followers += 1

    def leave(self) -> None:
        self.num_followers -= 1
        self._notify()

    async def change(self) -> None:
        """Wait for the next change of any kind."""
        await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class KeptAnswers:
    """All kept answers. Owned by the event loop."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._by_name: dict[KeptName, KeptAnswer] = {}
        self._by_tenant: dict[str, OrderedDict[KeptName, KeptAnswer]] = {}  # least recently used first
        self._num_bytes: Counter[str] = Counter()  # by tenant
        self.num_bytes = 0  # of all tenants
        self._expiring: OrderedDict[KeptName, float] = OrderedDict()  # complete answers, oldest first

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def num_followers(self) -> int:
        return sum(answer.num_followers for answer in self._by_name.values())

    def find(self, name: KeptName, body_digest: bytes) -> KeptAnswer | None:
        """Return the answer to an earlier request. Raises 409 if that request had another body."""
        self._expire()
        answer = self._by_name.get(name)
        if answer is None:
            return None
        if answer.body_digest != body_digest:
            raise ApiError(
                409,
                "this Idempotency-Key was used for a request with another body: use a new key for each new"
                " request, and the same key only to repeat a request unchanged",
                code="idempotency_key_reused",
            )
        self._by_tenant[answer.tenant].move_to_end(name)
        return answer

    def open(self, name: KeptName, tenant: str, body_digest: bytes, identity: ResponseIdentity) -> KeptAnswer:
        """Return a new answer, which the caller must end or fail. `find` has returned None."""
        answer = KeptAnswer(self, name, tenant, body_digest, identity)
        self._by_name[name] = answer
        self._by_tenant.setdefault(tenant, OrderedDict())[name] = answer
        self._count(tenant, answer.num_bytes)
        self._make_room()
        return answer

    # -- called by answers -------------------------------------------------------------------------------

    def grow(self, answer: KeptAnswer, num_bytes: int) -> bool:
        """Add bytes to an answer that is running. Return False if its content is no longer kept."""
        if answer.state is not AnswerState.RUNNING:
            return False
        if answer.num_bytes + num_bytes > self._max_bytes // MAX_SHARE:
            self._drop_content(answer)
            return False
        answer.num_bytes += num_bytes
        self._count(answer.tenant, num_bytes)
        self._make_room()
        return answer.pieces is not None

    def keep(self, answer: KeptAnswer) -> None:
        self._expiring[answer.name] = self._clock() + KEPT_SECONDS
        self._make_room()

    def forget(self, answer: KeptAnswer) -> None:
        if self._by_name.get(answer.name) is not answer:
            return
        del self._by_name[answer.name]
        of_tenant = self._by_tenant[answer.tenant]
        del of_tenant[answer.name]
        self._expiring.pop(answer.name, None)
        self._count(answer.tenant, -answer.num_bytes)
        if not of_tenant:
            del self._by_tenant[answer.tenant], self._num_bytes[answer.tenant]

    # -- bounds ------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        now = self._clock()
        while self._expiring:
            name, expires = next(iter(self._expiring.items()))
            if expires > now:
                return
            self.forget(self._by_name[name])

    def _make_room(self) -> None:
        while self.num_bytes > self._max_bytes and self._evict():
            pass

    def _evict(self) -> bool:
        """Drop the oldest complete answer of the tenant that uses the most, else a running one's content.

        Running answers without content remain. They are bounded by the connections of their requests.
        """
        for tenant, _ in self._num_bytes.most_common():
            answers = self._by_tenant[tenant].values()
            complete = next((one for one in answers if one.state is AnswerState.COMPLETE), None)
            if complete is not None:
                self.forget(complete)
                complete.drop_content()  # no longer counted, so a slow follower must not keep it in memory
                return True
            running = next((one for one in answers if one.pieces), None)
            if running is not None:
                self._drop_content(running)
                return True
        return False

    def _drop_content(self, answer: KeptAnswer) -> None:
        self._count(answer.tenant, ENTRY_BYTES - answer.num_bytes)
        answer.num_bytes = ENTRY_BYTES
        answer.drop_content()

    def _count(self, tenant: str, num_bytes: int) -> None:
        self._num_bytes[tenant] += num_bytes
        self.num_bytes += num_bytes
