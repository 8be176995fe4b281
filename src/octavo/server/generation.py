"""One HTTP request for tokens under way, from its prompts to the last update. Closed in the end, whatever
happens: the engine then works for nobody who is gone, and the queue has its room back."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from starlette.types import Receive

from octavo.dialect.reader import AnswerFormat
from octavo.frontend.in_flight import InFlight
from octavo.frontend.intake import TIMEOUT, PreparedRequest, Prompt
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.updates import Update, Updates
from octavo.grammar.matcher import TOO_COMPLEX
from octavo.protocol import GrammarSpec, SamplingParams
from octavo.server.http.errors import ApiError, ClientGone, internal, unavailable
from octavo.server.openai.schema import SamplingFields
from octavo.server.openai.usage import explanation
from octavo.server.operate.record import RequestRecord
from octavo.server.state import ServerState

Result = TypeVar("Result")


@dataclass(frozen=True)
class Asked:
    """A request as the endpoint understood it: what is the same for all of its prompts."""

    response_id: str
    fields: SamplingFields
    params: SamplingParams
    identity: str  # of the caller
    add_special_tokens: bool


class Generation:
    def __init__(self, state: ServerState, asked: Asked, record: RequestRecord, receive: Receive) -> None:
        self.state = state
        self.record = record
        self.asked = asked
        self._params = asked.params
        self.created = int(time.time())
        self.prepared: list[PreparedRequest] = []
        self.results: dict[int, RequestOutput] = {}  # by prompt
        self.tokenise_seconds = 0.0
        self._restarts_before = state.supervisor.num_restarts
        self._index: dict[str, int] = {}  # of prompts, by the name their updates have
        self._queued: dict[str, PreparedRequest] = {}  # no token yet, by name
        self._updates = Updates()
        self._is_gone = False
        self._watcher = asyncio.create_task(self._watch(receive))
        state.num_open += 1
        record.response_id, record.is_stream = asked.response_id, bool(asked.fields.stream)

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
            self.record.explanation = explanation(self, has_words=False)

    async def timed(self, work: Awaitable[Result]) -> Result:
        """Work on the prompt, which counts as tokenising."""
        started = time.perf_counter()
        result = await work
        self.tokenise_seconds += time.perf_counter() - started
        return result

    async def constrain(self, found: Awaitable[GrammarSpec | None]) -> None:
        """Before `prepare`: the answer conforms to the grammar, if there is one."""
        grammar = await found
        if grammar is not None:
            self._params = msgspec.structs.replace(self._params, grammar=grammar)

    async def prepare(self, prompts: Sequence[Prompt], format: AnswerFormat | None = None) -> None:
        """Everything is checked and tokenised before anything is asked of the engine."""
        self.state.admission.check_size(len(prompts))
        num_chars = sum(len(prompt) for prompt in prompts)
        prepared = await self.timed(self.state.in_thread(num_chars, self._prepare_all, prompts, format))
        self.check_client()
        self.state.check_ready()
        self.state.admission.enter(
            sum(len(one.messages) for one in prepared), sum(len(one.prompt_ids) for one in prepared)
        )
        self.prepared = prepared
        self._index = {one.name: index for index, one in enumerate(prepared)}
        self._queued = {one.name: one for one in prepared}

    async def submit(self) -> None:
        for prepared in self.prepared:
            self.record.submit(prepared)
            self.state.hub.submit(InFlight(prepared, self.state.model.tokenizer, self._updates))

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

    async def finish(self) -> list[RequestOutput]:
        """All results, in the order of the prompts; the first failure among them is raised."""
        while not self.is_done:
            for update in await self.take():
                if isinstance(update, StreamDelta):
                    raise_if_failed(update.finish_reason, update.error)
        return [self.results[index] for index in range(len(self.prepared))]

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.prepared)

    @property
    def num_restarts(self) -> int:
        """Engines that have died under this request."""
        return self.state.supervisor.num_restarts - self._restarts_before

    def choice_index(self, delta: StreamDelta) -> int:
        """Choices of all prompts are counted through."""
        return self._index[delta.request_id] * self.asked.params.n + delta.choice

    def prompt_of(self, delta: StreamDelta) -> PreparedRequest:
        return self.prepared[self._index[delta.request_id]]

    def wake(self) -> None:
        self._updates.wake()

    def check_client(self) -> None:
        if self._is_gone:
            raise ClientGone

    def _prepare_all(self, prompts: Sequence[Prompt], format: AnswerFormat | None) -> list[PreparedRequest]:
        fields, now = self.asked.fields, time.monotonic()
        longest = self.state.options.request_timeout
        timeout = longest if fields.timeout is None else fields.timeout
        if timeout <= TIMEOUT[1]:  # nonsense is not made sense of: it is refused below
            timeout = min(timeout, longest)
        salt = fields.cache_salt or ""
        return [
            self.state.intake.prepare(
                f"{self.asked.response_id}-{index}",
                prompt,
                self._params,
                now=now,
                name=str(index),
                add_special_tokens=self.asked.add_special_tokens,
                priority=fields.priority or 0,
                timeout=timeout,
                # A key's identity has no zero byte, so that no salt of one can be that of another.
                cache_salt=f"{self.asked.identity}\0{salt}" if self.asked.identity else salt,
                format=format,
            )
            for index, prompt in enumerate(prompts)
        ]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._updates.wake()


def raise_if_failed(finish_reason: str | None, error: str | None) -> None:
    """A choice that ended neither by itself nor by its length is an error, not an answer."""
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
    if error == TOO_COMPLEX:  # which shows only while the answer is written
        raise ApiError(400, error, code="grammar_too_complex")
    raise unavailable(error, code="engine_failed") if error else internal()
