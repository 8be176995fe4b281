"""One HTTP request for tokens under way, from its task to the last update. Closed in the end, whatever
happens: the engine then works for nobody who is gone, and the queue has its room back."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from starlette.types import Receive

from octavo.errors import grammar_of
from octavo.frontend.in_flight import InFlight
from octavo.frontend.intake import FieldGrammar, PreparedRequest, PromptTask
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.updates import Update, Updates
from octavo.prompting.prompter import Prompter
from octavo.protocol import FailureCode, SamplingParams
from octavo.server.explanation import explanation
from octavo.server.http.budget import Holding
from octavo.server.http.errors import ApiError, ClientGone, internal, unavailable
from octavo.server.http.leaving import until_gone
from octavo.server.operate.record import RequestRecord
from octavo.server.state import ServerState

SCORE_BYTES = 100  # of one token that could have come, as JSON and while that is made


@dataclass(frozen=True)
class Asked:
    """What a request says beside its tasks."""

    response_id: str
    identity: str  # of the caller
    is_stream: bool
    shows_prompt: bool  # in the explanation
    priority: int
    arrival: float  # of its first byte, by time.monotonic()
    timeout: float | None  # seconds from then on
    cache_salt: str


class Work(Protocol):
    """What a request wants to be answered, before there are prompts."""

    @property
    def num_prompts(self) -> int: ...

    @property
    def params(self) -> SamplingParams: ...

    async def tasks(self, prompter: Prompter, max_model_len: int) -> list[PromptTask]:
        """With prompts of ids."""
        ...


class Generation:
    def __init__(
        self, state: ServerState, asked: Asked, record: RequestRecord, receive: Receive, holding: Holding
    ) -> None:
        """`holding` is the request's, and closed when its answer has been written."""
        self.state = state
        self._holding = holding
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
        self._starting: asyncio.Task[Any] | None = None
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

    async def start(self, work: Work) -> None:
        """Ends when the deadline has come, or the client has left: nothing is made for nobody."""
        self.state.intake.check(work.params, priority=self.asked.priority, timeout=self.asked.timeout)
        self._starting = asyncio.current_task()
        try:
            async with asyncio.timeout(self._seconds_left):
                await self._start(work)
        except TimeoutError as error:
            raise overdue() from error
        except asyncio.CancelledError:
            if not self._is_gone or self._starting is None:
                raise
            self._starting.uncancel()
            raise ClientGone from None
        finally:
            self._starting = None

    async def _start(self, work: Work) -> None:
        """Everything is made, checked and tokenised before anything is asked of the engine."""
        self.state.admission.check_size(work.num_prompts)
        started = time.perf_counter()
        tasks = await work.tasks(self.state.prompter, self.state.facts.max_model_len)
        self._tokenise_seconds = time.perf_counter() - started
        await self._check_grammars(dict.fromkeys(one for task in tasks for one in task.grammars))
        prepared = self._prepare_all(tasks)
        self._holding.take(SCORE_BYTES * sum(_num_prompt_scores(one) for one in prepared))
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
            elif not self.asked.is_stream:
                self._holding.take(SCORE_BYTES * sum(1 + len(score.top) for score in update.logprobs))
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

    async def _check_grammars(self, grammars: Iterable[FieldGrammar]) -> None:
        for one in grammars:
            with grammar_of(one.field):
                await asyncio.wrap_future(self.state.grammars.submit(one.spec))

    @property
    def _timeout(self) -> float:
        longest, asked = self.state.options.request_timeout, self.asked.timeout
        return longest if asked is None else min(asked, longest)

    @property
    def _seconds_left(self) -> float:
        return self.asked.arrival + self._timeout - time.monotonic()

    def _prepare_all(self, tasks: Sequence[PromptTask]) -> list[PreparedRequest]:
        asked, now = self.asked, time.monotonic()
        return [
            self.state.intake.prepare(
                f"{asked.response_id}-{index}",
                task,
                now=now,
                name=str(index),
                priority=asked.priority,
                arrival=asked.arrival,
                timeout=self._timeout,
                # A key's identity has no zero byte, so that no salt of one can be that of another.
                cache_salt=f"{asked.identity}\0{asked.cache_salt}" if asked.identity else asked.cache_salt,
            )
            for index, task in enumerate(tasks)
        ]

    async def _watch(self, receive: Receive) -> None:
        await until_gone(receive)
        self._is_gone = True
        self._updates.wake()
        if self._starting is not None:
            self._starting.cancel()


def _num_prompt_scores(prepared: PreparedRequest) -> int:
    """Each choice may be written with all of them."""
    params = prepared.params
    if params.prompt_logprobs is None:
        return 0
    return len(prepared.prompt_ids) * (1 + params.prompt_logprobs) * params.n


def overdue() -> ApiError:
    return ApiError(
        408,
        "the request did not finish before its deadline",
        kind="timeout_error",
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def raise_if_failed(delta: StreamDelta) -> None:
    """A choice that ended neither by itself nor by its length is an error, not an answer."""
    finish_reason, error, error_code = delta.finish_reason, delta.error, delta.error_code
    if finish_reason in (None, "stop", "length"):
        return
    if finish_reason == "deadline":
        raise overdue()
    if finish_reason == "abort":
        raise unavailable("the request was ended by the server", code="aborted")
    if error is None or error_code is None:
        raise internal()
    if error_code is FailureCode.GRAMMAR_TOO_COMPLEX:  # which shows only while the answer is written
        raise ApiError(400, error, code=error_code.value)
    raise unavailable(error, code=error_code.value)
