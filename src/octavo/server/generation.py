"""One in-flight generation request, from its tasks to the last update.

A generation is always closed: this aborts unfinished work in the engine and releases its room in the queue.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from starlette.types import Receive

from octavo.errors import grammar_of
from octavo.fairness.tenant import Tenant
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import FieldGrammar, PreparedRequest, PromptTask
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.updates import Update, Updates
from octavo.prompting.prompter import Prompter
from octavo.protocol import FailureCode, SamplingParams
from octavo.server.event_ids import ChoicePosition, EventIds, StreamOrigin, StreamPosition, make_event_ids
from octavo.server.explanation import ExplainedParts, explanation
from octavo.server.http.budget import Holding
from octavo.server.http.disconnect import until_disconnected
from octavo.server.http.errors import ApiError, ClientDisconnected, internal, unavailable
from octavo.server.identity import prompt_seed
from octavo.server.operate.record import RequestRecord
from octavo.server.state import ServerState

LOGPROB_BYTES = 100  # memory for one alternative token, including its JSON


@dataclass(frozen=True)
class RequestContext:
    """Properties of a request apart from its prompts and sampling parameters."""

    response_id: str
    created: int  # seconds since 1970
    seed: int  # if the parameters have none
    engine_id: str  # unique among in-flight requests; others may have the same response id
    tenant: Tenant
    is_stream: bool
    model: str  # the name in the response, which the client may have chosen among several
    shown: ExplainedParts  # in the explanation
    priority: int
    arrival: float  # of its first byte, by time.monotonic()
    timeout: float | None  # seconds from arrival
    cache_salt: str
    origin: StreamOrigin | None = None  # of a stream whose events have ids

    @property
    def resumed(self) -> StreamPosition | None:
        """What the client already has of the stream."""
        return None if self.origin is None else self.origin.resumed


class Work(Protocol):
    """The prompts and parameters of a request, before the prompts are built."""

    @property
    def num_prompts(self) -> int: ...

    @property
    def params(self) -> SamplingParams: ...

    async def tasks(self, prompter: Prompter, tenant: Tenant, max_model_len: int) -> list[PromptTask]:
        """Return one task per prompt, with the prompts as token ids."""
        ...


class Generation:
    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        record: RequestRecord,
        receive: Receive,
        holding: Holding,
    ) -> None:
        """`holding` belongs to the HTTP request, which closes it when the response has been written."""
        self.state = state
        self.pool = state.pool
        self._holding = holding
        self.record = record
        self.context = context
        self.prepared: list[PreparedRequest] = []
        self.results: dict[int, RequestOutput] = {}  # by prompt index
        self.event_ids: EventIds | None = None  # None: events have no ids
        self._tokenise_seconds = 0.0
        self._restarts_before = state.replicas.num_restarts
        self._index: dict[str, int] = {}  # prompt index by the name in updates
        self._queued: dict[str, PreparedRequest] = {}  # by name, without a first token
        self._updates = Updates()
        self._is_disconnected = False
        self._starting: asyncio.Task[Any] | None = None
        self._watcher = asyncio.create_task(self._watch(receive))
        state.num_open += 1
        record.response_id, record.is_stream = context.response_id, context.is_stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort unfinished work and release the queue. Must be called exactly once."""
        self._watcher.cancel()
        for prepared in self._queued.values():
            self._leave_queue(prepared)
        self._queued.clear()
        self.state.num_open -= 1
        self.record.keyed.leave()
        self.record.end_sequences()
        for index, prepared in enumerate(self.prepared):
            if index not in self.results:
                self.pool.hub.abort(prepared.request_id)
        if self.state.feed.is_watched and self.results:
            self.record.explanation = self.explanation(has_text=False)

    async def start(self, work: Work) -> None:
        """Submit the work to the engine. Stops early at the deadline or when the client disconnects."""
        await self.record.keyed.enter()
        self.check_client()
        self.pool.intake.check(work.params, priority=self.context.priority, timeout=self.context.timeout)
        self._starting = asyncio.current_task()
        try:
            async with asyncio.timeout(self._seconds_left):
                await self._start(work)
        except TimeoutError as error:
            raise deadline_exceeded() from error
        except asyncio.CancelledError:
            if not self._is_disconnected or self._starting is None:
                raise
            self._starting.uncancel()
            raise ClientDisconnected from None
        finally:
            self._starting = None

    async def _start(self, work: Work) -> None:
        """Build, check and tokenise all prompts before the first is submitted to the engine."""
        self.state.admission.check_size(work.num_prompts)
        started = time.perf_counter()
        tenant = self.context.tenant
        tasks = await work.tasks(self.state.prompter, tenant, self.pool.facts.max_model_len)
        self._tokenise_seconds = time.perf_counter() - started
        await self._check_grammars(dict.fromkeys(grammar for task in tasks for grammar in task.grammars))
        prepared = self._prepare_all(tasks)
        if self.context.origin is not None:
            self.event_ids = make_event_ids(
                self.context.origin, self.pool.fingerprint, self.state.model.name, prepared
            )
        self._holding.take(LOGPROB_BYTES * sum(_num_prompt_logprobs(one) for one in prepared))
        num_answer = 0 if work.params.max_tokens is None else sum(map(_max_answer, prepared))
        await self.record.keyed.reserve(sum(len(one.prompt_ids) for one in prepared), num_answer)
        self.state.check_ready()
        self.state.admission.enter(
            tenant,
            sum(len(one.messages) for one in prepared),
            sum(len(one.prompt_ids) for one in prepared),
        )
        self.record.keyed.submit()
        self.prepared = prepared
        self._index = {one.name: index for index, one in enumerate(prepared)}
        self._queued = {one.name: one for one in prepared}
        for one in prepared:
            self.record.submit(one)
            received = [choice.num_tokens for choice in self._received(one)]
            self.pool.hub.submit(
                InFlightRequest(one, self.state.model.tokenizer, self._updates, split_at=received)
            )

    async def take(self) -> list[Update]:
        """Wait for updates and return them; empty after `wake`."""
        updates = await self._updates.take()
        self.check_client()
        num_before = self.record.num_completion
        self.record.note(updates)
        self.record.keyed.note_generated(self.record.num_completion - num_before)
        if self.context.resumed is not None:
            updates = [self._as_first_reported(update) for update in updates]
        for update in updates:
            if update.request_id in self._queued:
                self._leave_queue(self._queued.pop(update.request_id))
            if isinstance(update, RequestOutput):
                self.results[self._index[update.request_id]] = update
            elif not self.context.is_stream:
                self._holding.take(LOGPROB_BYTES * sum(1 + len(entry.top) for entry in update.logprobs))
        return updates

    async def finish(self) -> None:
        """Wait for all results. Raises the first failure among them."""
        while not self.is_done:
            for update in await self.take():
                if isinstance(update, StreamDelta):
                    raise_if_failed(update)

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.prepared)

    def explanation(self, *, has_text: bool = True) -> dict[str, Any]:
        """Return the `octavo` object; with `has_text=False`, without any text of client or model."""
        return explanation(
            [self.results[index] for index in sorted(self.results)],
            self.state.model.tokenizer if has_text else None,
            tokenise_seconds=self._tokenise_seconds,
            num_restarts=self.state.replicas.num_restarts - self._restarts_before,
            shown=self.context.shown,
        )

    def choice_index(self, delta: StreamDelta) -> int:
        """Return the index in the response. Choice indices are consecutive across prompts."""
        return self._index[delta.request_id] * self.prepared[0].params.n + delta.choice

    def prompt_of(self, delta: StreamDelta) -> PreparedRequest:
        return self.prepared[self._index[delta.request_id]]

    def wake(self) -> None:
        self._updates.wake()

    def check_client(self) -> None:
        if self._is_disconnected:
            raise ClientDisconnected

    async def _check_grammars(self, grammars: Iterable[FieldGrammar]) -> None:
        for grammar in grammars:
            with grammar_of(grammar.field):
                await asyncio.wrap_future(self.state.grammars.submit(grammar.spec, self.context.tenant))

    def _leave_queue(self, prepared: PreparedRequest) -> None:
        self.state.admission.leave(self.context.tenant, len(prepared.messages), len(prepared.prompt_ids))

    @property
    def _timeout(self) -> float:
        return self.state.timeout(self.context.timeout)

    @property
    def _seconds_left(self) -> float:
        return self.context.arrival + self._timeout - time.monotonic()

    def _prepare_all(self, tasks: Sequence[PromptTask]) -> list[PreparedRequest]:
        context, now = self.context, time.monotonic()
        return [
            self.pool.intake.prepare(
                f"{context.engine_id}-{index}",
                _with_seed(task, prompt_seed(context.seed, index)),
                now=now,
                name=str(index),
                priority=context.priority,
                rank=context.priority if self.state.options.priority_across_keys else 0,
                arrival=context.arrival,
                timeout=self._timeout,
                tenant=context.tenant,
                # Names contain no zero byte, so the salts of two tenants never collide.
                cache_salt=(
                    f"{context.tenant.name}\0{context.cache_salt}"
                    if context.tenant.name
                    else context.cache_salt
                ),
            )
            for index, task in enumerate(tasks)
        ]

    def _received(self, prepared: PreparedRequest) -> Sequence[ChoicePosition]:
        """Return what the client already has of each choice of a prompt; empty if the stream is new."""
        resumed, num_choices = self.context.resumed, len(prepared.messages)
        first = self._index[prepared.name] * num_choices
        return () if resumed is None else resumed.choices[first : first + num_choices]

    def _as_first_reported(self, update: Update) -> Update:
        """Return the update with the number of cached tokens that the client has received before."""
        choice = update.choice if isinstance(update, StreamDelta) else 0
        received = self._received(self.prepared[self._index[update.request_id]])[choice]
        return (
            msgspec.structs.replace(update, num_cached=received.num_cached) if received.num_tokens else update
        )

    async def _watch(self, receive: Receive) -> None:
        await until_disconnected(receive)
        self._is_disconnected = True
        self._updates.wake()
        if self._starting is not None:
            self._starting.cancel()


def _with_seed(task: PromptTask, seed: int) -> PromptTask:
    if task.params.seed is not None:
        return task
    return replace(task, params=msgspec.structs.replace(task.params, seed=seed))


def _max_answer(prepared: PreparedRequest) -> int:
    """Return the maximum number of tokens of all choices."""
    return prepared.params.n * (prepared.params.max_tokens or 0)


def _num_prompt_logprobs(prepared: PreparedRequest) -> int:
    """Return the number of entries in the response, where each choice may repeat those of the prompt."""
    params = prepared.params
    if params.prompt_logprobs is None:
        return 0
    return len(prepared.prompt_ids) * (1 + params.prompt_logprobs) * params.n


def deadline_exceeded() -> ApiError:
    return ApiError(
        408,
        "the request did not finish before its deadline",
        kind="timeout_error",
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def raise_if_failed(delta: StreamDelta) -> None:
    """Raise an ApiError if the choice ended for another reason than `stop` or `length`."""
    finish_reason, error, error_code = delta.finish_reason, delta.error, delta.error_code
    if finish_reason in (None, "stop", "length"):
        return
    if finish_reason == "deadline":
        raise deadline_exceeded()
    if finish_reason == "abort":
        raise unavailable("the server aborted the request", code="aborted")
    if error is None or error_code is None:
        raise internal()
    if error_code is FailureCode.GRAMMAR_TOO_COMPLEX:  # detected only during generation
        raise ApiError(400, error, code=error_code.value)
    raise unavailable(error, code=error_code.value)
