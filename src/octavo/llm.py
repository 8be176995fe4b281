"""`LLM`: a model in this process. Text in, text out; offline batches, streams, and the steps underneath."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.errors import ConfigError, RequestError
from octavo.frontend.client import EngineClient, InProcessClient
from octavo.frontend.defaults import default_params
from octavo.frontend.intake import Intake, Limits, PreparedRequest, Prompt
from octavo.frontend.output import OutputProcessor, RequestOutput, StreamDelta
from octavo.frontend.progress import BatchProgress
from octavo.protocol import Abort, EngineFacts, EngineStats, SamplingParams
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Update = StreamDelta | RequestOutput
Listener = Callable[[Update], None]


@dataclass(frozen=True)
class StepUpdate:
    """What a call of `LLM.step` brought, for the requests made with `add_request`."""

    deltas: tuple[StreamDelta, ...]
    finished: tuple[RequestOutput, ...]


class LLM:
    """A checkpoint, ready to generate.

    Any thread or task may ask for text at any time: whoever waits for an answer drives the engine a step
    further, for all requests under way, and updates go to whoever asked. There is no thread of its own.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        checkpoint_path: str | Path | None = None,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        progress: bool = False,
        **options: Any,
    ) -> None:
        """`options` are fields of `octavo.config.EngineOptions`; `progress` shows how the weights load."""
        self.options = EngineOptions(
            model=model,
            checkpoint_path=None if checkpoint_path is None else str(checkpoint_path),
            revision=revision,
            tokenizer=None if tokenizer is None else str(tokenizer),
            **options,
        )
        if "log_level" in options:
            logging.getLogger("octavo").setLevel(self.options.log_level.upper())
        if model is None and checkpoint_path is None:
            raise ConfigError("no model: give a hub id or the path of a checkpoint folder or GGUF file")
        checkpoint = open_checkpoint(
            model, checkpoint_path=checkpoint_path, revision=revision, tokenizer=tokenizer
        )
        self.name = checkpoint.name
        self.tokenizer = Tokenizer(checkpoint.text)
        self.chat_template = ChatTemplate(checkpoint.text)
        self.default_params = default_params(checkpoint.generation_config)
        self._client: EngineClient = InProcessClient.start(checkpoint, self.options, progress=progress)
        facts = self._client.facts
        self._intake = Intake(self.tokenizer, Limits(facts.vocab_size, facts.max_model_len))
        self._processor = OutputProcessor(self.tokenizer)
        self._ids = itertools.count()
        self._lock = threading.Lock()  # held while stepping; guards what follows
        self._listeners: dict[str, Listener] = {}
        self._unclaimed: list[Update] = []
        self._stepper = ThreadPoolExecutor(1, thread_name_prefix="octavo-step")

    # -- whole answers ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **request: Any,
    ) -> list[RequestOutput]:
        """Complete one prompt or many (strings, or lists of token ids), in the order given.

        `params` is one for all, or one for each. `request`: priority, timeout (seconds), cache_salt.
        """
        batch = as_prompts(prompts)
        each = self._params_for(batch, params)
        return self._run([self._prepare(p, s, **request) for p, s in zip(batch, each, strict=True)], progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: bool = False,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; a message has `role` and `content`.

        `template` holds further values for the chat template, such as `enable_thinking`.
        """
        prompts = [
            self.chat_template.render(conversation, tools=tools, **(template or {}))
            for conversation in as_conversations(messages)
        ]
        each = self._params_for(prompts, params)
        return self._run(
            [
                self._prepare(p, s, add_special_tokens=False, **request)
                for p, s in zip(prompts, each, strict=True)
            ],
            progress,
        )

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **request: Any
    ) -> RequestOutput:
        """Complete one prompt; many calls at once share the batch."""
        return await self._finish(self._prepare(prompt, params or self.default_params, **request))

    async def achat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> RequestOutput:
        """Answer one conversation; many calls at once share the batch."""
        return await self._finish(self._prepare_chat(messages, params, tools, template, request))

    # -- streams ------------------------------------------------------------------------------------

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **request: Any
    ) -> Iterator[StreamDelta]:
        """The answer piece by piece. To stop early, close the iterator: the request is then aborted."""
        return self._stream(self._prepare(prompt, params or self.default_params, **request))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Iterator[StreamDelta]:
        return self._stream(self._prepare_chat(messages, params, tools, template, request))

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **request: Any
    ) -> AsyncIterator[StreamDelta]:
        return self._astream(self._prepare(prompt, params or self.default_params, **request))

    def astream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> AsyncIterator[StreamDelta]:
        return self._astream(self._prepare_chat(messages, params, tools, template, request))

    # -- underneath -----------------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **request: Any,
    ) -> str:
        """Queue a request and return its id; `step` brings what becomes of it."""
        prepared = self._prepare(prompt, params or self.default_params, request_id=request_id, **request)
        self._submit(prepared, None)
        return prepared.request_id

    def step(self) -> StepUpdate:
        """One step for all requests under way."""
        with self._lock:
            self._advance()
            updates, self._unclaimed = self._unclaimed, []
        return StepUpdate(
            tuple(update for update in updates if isinstance(update, StreamDelta)),
            tuple(update for update in updates if isinstance(update, RequestOutput)),
        )

    @property
    def has_unfinished(self) -> bool:
        return self._client.has_unfinished or bool(self._unclaimed)

    def abort(self, request_id: str) -> None:
        """End a request; its result has the finish reason `abort`. Unknown ids are ignored."""
        self._client.send(Abort(request_id))

    def stats(self) -> EngineStats:
        return self._client.stats()

    @property
    def facts(self) -> EngineFacts:
        return self._client.facts

    def check(self) -> None:
        """Assert every invariant of scheduler and cache."""
        with self._lock:
            self._client.check()

    def close(self) -> None:
        """Free the model and its memory. What is under way is dropped."""
        self._stepper.shutdown()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- parts ----------------------------------------------------------------------------------------

    def _params_for(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * len(prompts)
        if len(params) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(params)} params: give one, or one for each")
        return params

    def _prepare(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, **request: Any
    ) -> PreparedRequest:
        name = request_id if request_id is not None else f"request-{next(self._ids)}"
        return self._intake.prepare(name, prompt, params, now=time.monotonic(), **request)

    def _prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None,
        tools: Sequence[Mapping[str, Any]] | None,
        template: Mapping[str, Any] | None,
        request: Mapping[str, Any],
    ) -> PreparedRequest:
        prompt = self.chat_template.render(messages, tools=tools, **(template or {}))
        return self._prepare(prompt, params or self.default_params, add_special_tokens=False, **request)

    def _submit(self, prepared: PreparedRequest, listener: Listener | None) -> None:
        with self._lock:
            self._processor.open(prepared)
            if listener is not None:
                self._listeners[prepared.request_id] = listener
            for message in prepared.messages:
                self._client.send(message)

    def _drop(self, prepared: PreparedRequest) -> None:
        """Nobody waits for it any more: end it if it still runs."""
        with self._lock:
            if self._listeners.pop(prepared.request_id, None) is not None:
                self._processor.forget(prepared.request_id)
                self._client.send(Abort(prepared.request_id))

    def _advance(self) -> None:
        """One step, with the lock held; every update goes to its listener, or waits for `step`."""
        for output in self._client.step().outputs:
            processed = self._processor.process(output)
            if processed.abort is not None:
                self._client.send(processed.abort)
            listener = self._listeners.get(output.request_id, self._unclaimed.append)
            if processed.delta is not None:
                listener(processed.delta)
            if processed.finished is not None:
                self._listeners.pop(output.request_id, None)
                listener(processed.finished)

    def _advance_unless(self, arrived: deque[Update]) -> None:
        """A step, unless somebody else's step has already brought something."""
        with self._lock:
            if not arrived:
                self._advance()

    def _run(self, batch: list[PreparedRequest], progress: bool) -> list[RequestOutput]:
        results: dict[str, RequestOutput] = {}
        with BatchProgress(len(batch), enabled=progress) as bar:

            def listen(update: Update) -> None:
                bar.update(update)
                if isinstance(update, RequestOutput):
                    results[update.request_id] = update

            try:
                for prepared in batch:
                    self._submit(prepared, listen)
                while len(results) < len(batch):
                    with self._lock:
                        if len(results) < len(batch):
                            self._advance()
            finally:
                for prepared in batch:
                    self._drop(prepared)
        return [results[prepared.request_id] for prepared in batch]

    def _stream(self, prepared: PreparedRequest) -> Iterator[StreamDelta]:
        arrived: deque[Update] = deque()
        self._submit(prepared, arrived.append)
        try:
            while True:
                while not arrived:
                    self._advance_unless(arrived)
                update = arrived.popleft()
                if isinstance(update, RequestOutput):
                    return
                yield update
        finally:
            self._drop(prepared)

    async def _updates(self, prepared: PreparedRequest) -> AsyncIterator[Update]:
        arrived: deque[Update] = deque()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._stepper, self._submit, prepared, arrived.append)
        try:
            while True:
                while not arrived:
                    await loop.run_in_executor(self._stepper, self._advance_unless, arrived)
                update = arrived.popleft()
                yield update
                if isinstance(update, RequestOutput):
                    return
        finally:
            self._stepper.submit(self._drop, prepared)

    async def _astream(self, prepared: PreparedRequest) -> AsyncIterator[StreamDelta]:
        async for update in self._updates(prepared):
            if isinstance(update, StreamDelta):
                yield update

    async def _finish(self, prepared: PreparedRequest) -> RequestOutput:
        async for update in self._updates(prepared):
            if isinstance(update, RequestOutput):
                return update
        raise AssertionError("a request ends with its result")


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a string, a list of ids, or a list of either."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]
