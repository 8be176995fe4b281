"""One HTTP request for tokens under way, from its task to the last update. Closed in the end, whatever
happens: the engine then works for nobody who is gone, and the queue has its room back."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from starlette.types import Receive

from octavo.errors import grammar_of
from octavo.frontend.in_flight import InFlight
from octavo.frontend.intake import TIMEOUT, FieldGrammar, PreparedRequest, PromptTask
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.updates import Update, Updates
from octavo.protocol import FailureCode
from octavo.server.explanation import explanation
from octavo.server.http.errors import ApiError, ClientGone, internal, unavailable
from octavo.server.operate.record import RequestRecord
from octavo.server.state import ServerState

Result = TypeVar("Result")
Asking = TypeVar("Asking")  # a chat, or a prompt


@dataclass(frozen=True)
class Asked:
    """What a request says beside its tasks."""

    response_id: str
    identity: str  # of the caller
    is_stream: bool
    shows_prompt: bool  # in the explanation
    priority: int
    timeout: float | None
    cache_salt: str


@dataclass(frozen=True)
class Work(Generic[Asking]):
    """How the tasks of a request are made, of what, and of how much text: little of it is left to the event
    loop itself."""

    make: Callable[[Asking], PromptTask]
    of: Sequence[Asking]
    num_chars: int

    def tasks(self) -> list[PromptTask]:
        return [self.make(one) for one in self.of]


class Generation:
    def __init__(self, state: ServerState, asked: Asked, record: RequestRecord, receive: Receive) -> None:
        self.state = state
        self.record = record
        self.asked = asked
        self.created = int(time.time())
        self.prepared: list[PreparedRequest] = []
        self.results: dict[int, RequestOutput] = {}  # by prompt
        self._tokenise_seconds = 0.0
        self._restarts_before = state.supervisor.num_restarts
        self._index: dict[str, int] = {}  # of prompts, by the name their updates have
        self._queued: dict[str, PreparedRequest] = {}  # no token yet, by name
        self._updates = Updates()
        self._is_gone = False
        self._watcher = asyncio.create_task(self._watch(receive))
        state.num_open += 1
        record.response_id, record.is_stream = asked.response_id, asked.is_stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Once. What has not finished is aborted."""
        self._watcher.cancel()
        for prepared in self._queued.values():
            self.state.admission.leave(len(prepared.messages), len(prepared.prompt_ids))
        self._queued.clear()
        self.state.num_open -= 1
        self.record.end_sequences()
        for index, prepared in enumerate(self.prepared):
            if index not in self.results:
                self.state.hub.abort(prepared.request_id)
        if self.state.feed.is_watched and self.results:
            self.record.explanation = self.explanation(has_words=False)

    async def start(self, work: Work[Any]) -> None:
        """Everything is made, checked and tokenised before anything is asked of the engine."""
        self.state.admission.check_size(len(work.of))
        tasks = await self._timed(work.num_chars, work.tasks)
        await self._check_grammars(dict.fromkeys(one for task in tasks for one in task.grammars))
        num_chars = sum(len(task.prompt) for task in tasks)
        prepared = await self._timed(num_chars, self._prepare_all, tasks)
        self.check_client()
        self.state.check_ready()
        self.state.admission.enter(
            sum(len(one.messages) for one in prepared), sum(len(one.prompt_ids) for one in prepared)
        )
        self.prepared = prepared
        self._index = {one.name: index for index, one in enumerate(prepared)}
        self._queued = {one.name: one for one in prepared}
        for one in prepared:
            self.record.submit(one)
            self.state.hub.submit(InFlight(one, self.state.model.tokenizer, self._updates))

    async def take(self) -> list[Update]:
        """What has come since; empty after `wake`."""
        updates = await self._updates.take()
        self.check_client()
        self.record.note(updates)
        for update in updates:
            if update.request_id in self._queued:
                prepared = self._queued.pop(update.request_id)
                self.state.admission.leave(len(prepared.messages), len(prepared.prompt_ids))
            if isinstance(update, RequestOutput):
                self.results[self._index[update.request_id]] = update
        return updates

    async def finish(self) -> None:
        """Returns when all results are there; the first failure among them is raised."""
        while not self.is_done:
            for update in await self.take():
                if isinstance(update, StreamDelta):
                    raise_if_failed(update)

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.prepared)

    def explanation(self, *, has_words: bool = True) -> dict[str, Any]:
        """The `octavo` block. Without words, nothing that anybody wrote is in it."""
        return explanation(
            [self.results[index] for index in sorted(self.results)],
            self.state.model.tokenizer if has_words else None,
            tokenise_seconds=self._tokenise_seconds,
            num_restarts=self.state.supervisor.num_restarts - self._restarts_before,
            shows_prompt=self.asked.shows_prompt,
        )

    def choice_index(self, delta: StreamDelta) -> int:
        """Choices of all prompts are counted through."""
        return self._index[delta.request_id] * self.prepared[0].params.n + delta.choice

    def prompt_of(self, delta: StreamDelta) -> PreparedRequest:
        return self.prepared[self._index[delta.request_id]]

    def wake(self) -> None:
        self._updates.wake()

    def check_client(self) -> None:
        if self._is_gone:
            raise ClientGone

    async def _timed(self, num_chars: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Work on the prompt, which counts as tokenising."""
        started = time.perf_counter()
        result = await self.state.in_thread(num_chars, function, *arguments)
        self._tokenise_seconds += time.perf_counter() - started
        return result

    async def _check_grammars(self, grammars: Iterable[FieldGrammar]) -> None:
        for one in grammars:
            with grammar_of(one.field):
                await asyncio.wrap_future(self.state.grammars.submit(one.spec))

    def _prepare_all(self, tasks: Sequence[PromptTask]) -> list[PreparedRequest]:
        asked, now = self.asked, time.monotonic()
        longest = self.state.options.request_timeout
        timeout = longest if asked.timeout is None else asked.timeout
        if timeout <= TIMEOUT[1]:  # nonsense is not made sense of: it is refused below
            timeout = min(timeout, longest)
        return [
            self.state.intake.prepare(
                f"{asked.response_id}-{index}",
                task,
                now=now,
                name=str(index),
                priority=asked.priority,
                timeout=timeout,
                # A key's identity has no zero byte, so that no salt of one can be that of another.
                cache_salt=f"{asked.identity}\0{asked.cache_salt}" if asked.identity else asked.cache_salt,
            )
            for index, task in enumerate(tasks)
        ]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._updates.wake()


def raise_if_failed(delta: StreamDelta) -> None:
    """A choice that ended neither by itself nor by its length is an error, not an answer."""
    finish_reason, error, error_code = delta.finish_reason, delta.error, delta.error_code
    if finish_reason in (None, "stop", "length"):
        return
    if finish_reason == "deadline":
        raise ApiError(
            408,
            "the request did not finish before its deadline",
            kind="timeout_error",
            code="deadline_exceeded",
            headers={"x-should-retry": "false"},
        )
    if finish_reason == "abort":
        raise unavailable("the request was ended by the server", code="aborted")
    if error is None or error_code is None:
        raise internal()
    if error_code is FailureCode.GRAMMAR_TOO_COMPLEX:  # which shows only while the answer is written
        raise ApiError(400, error, code=error_code.value)
    raise unavailable(error, code=error_code.value)
