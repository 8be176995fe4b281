"""`LLM`: a model in this process, for offline batches, streams, or step-by-step control."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.errors import ConfigError, RequestError, grammar_of
from octavo.frontend.batches import (
    PromptInput,
    conversations_of,
    one_conversation,
    one_params,
    one_prompt,
    params_for,
    prompts_of,
    tools_of,
)
from octavo.frontend.chat import ChatTask, Message, compose
from octavo.frontend.engine_thread import EngineThread
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.in_process import InProcessChannel
from octavo.frontend.intake import FieldGrammar, Intake, PreparedRequest, Prompt, PromptTask, RequestLimits
from octavo.frontend.mailbox import Delivery, Mailbox, Names
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.parsed import constrained_by, with_objects
from octavo.frontend.progress import BatchProgress
from octavo.frontend.text_model import TextModel
from octavo.frontend.tool_use import OnlyTool, Tool, ToolChoice
from octavo.frontend.updates import Update
from octavo.grammar.checker import GrammarChecker
from octavo.grammar.specs import Schema
from octavo.protocol import EngineFacts, EngineStats, KernelTimes, SamplingParams

REPLICA = "in process"  # the hub's name for the only engine


@dataclass(frozen=True)
class StepUpdate:
    """The result of `LLM.step` for the requests made with `add_request`."""

    deltas: tuple[StreamDelta, ...]
    finished: tuple[RequestOutput, ...]


class LLM:
    """A loaded checkpoint, ready to generate text.

    Any thread or task may send requests at any time. A caller that waits for an answer requests a step, which
    serves all in-flight requests, and every update goes to the mailbox of its request. Steps and all other
    access to the engine happen on one separate thread, so Ctrl-C interrupts the waiting caller, never a step.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        checkpoint_path: str | Path | None = None,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        """Load the model. `options` are fields of `octavo.config.EngineOptions`.

        `progress`, here and below: show a progress bar on stderr; None shows it on a terminal only.
        """
        self.options = EngineOptions(
            model=model,
            checkpoint_path=None if checkpoint_path is None else str(checkpoint_path),
            revision=revision,
            tokenizer=None if tokenizer is None else str(tokenizer),
            **options,
        )
        if model is None and checkpoint_path is None:
            raise ConfigError("no model: pass a hub id or the path of a checkpoint folder or GGUF file")
        checkpoint = open_checkpoint(
            model,
            checkpoint_path=checkpoint_path,
            revision=revision,
            tokenizer=tokenizer,
            quantize=self.options.quantize,
        )
        self._text = TextModel.of_checkpoint(checkpoint)
        self.name = checkpoint.name
        self.tokenizer = self._text.tokenizer
        self.chat_template = self._text.template
        self.default_params = self._text.defaults
        self._channel = InProcessChannel.start(checkpoint, self.options, progress=progress)
        facts = self._channel.facts
        self._intake = Intake(self.tokenizer, RequestLimits(facts.vocab_size, facts.max_model_len))
        self._grammar_checker = GrammarChecker()
        self._numbers = itertools.count()
        self._engine_thread = EngineThread()
        self._hub = Hub()  # used on the engine thread only, once it is connected
        self._hub.connect(REPLICA, self._channel)
        self._names = Names()
        self._unclaimed = Mailbox()  # updates of requests made with `add_request`
        self._dropped: deque[PreparedRequest] = deque()  # callers stopped waiting; any thread may append

    # -- whole answers ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        schema: Schema | None = None,
        progress: bool | None = None,
        **request: Any,
    ) -> list[RequestOutput]:
        """Complete one prompt or an iterable of prompts, and return the outputs in the same order.

        A prompt is a string, an iterable of token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`.

        `params` applies to all prompts, or is an iterable with one entry per prompt. With `schema` (a JSON
        schema or a pydantic model) answers conform to it, and `parsed` is the answer as an object. `request`
        may contain `priority`, `timeout` (seconds) and `cache_salt`.
        """
        batch = prompts_of(prompts)
        each = params_for(batch, params, self.default_params)
        prepared = [
            self._prepare(_completion(p, constrained_by(schema, s), _field(schema)), **request)
            for p, s in zip(batch, each, strict=True)
        ]
        return [with_objects(schema, output) for output in self._run(prepared, progress)]

    def chat(
        self,
        messages: Iterable[Message] | Iterable[Iterable[Message]],
        params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        tools: Iterable[Tool] | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool | None = None,
        schema: Schema | None = None,
        progress: bool | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> list[RequestOutput]:
        """Answer one or many conversations; a message has `role` and `content`.

        Tool calls and reasoning are not part of an answer's `text`: see `calls` and `reasoning`.
        `tool_choice` is "auto" (the default), "none", "required" (at least one call) or a function's name;
        `parallel_tool_calls=False` allows at most one call.
        `template` contains additional variables for the chat template, such as `enable_thinking`. `schema` is
        as in `generate`.
        """
        given_tools, conversations = tools_of(tools), conversations_of(messages)
        each = params_for(conversations, params, self.default_params)
        prepared = [
            self._prepare(
                self._chat_task(
                    c,
                    s,
                    tools=given_tools,
                    tool_choice=tool_choice,
                    parallel_tool_calls=parallel_tool_calls,
                    schema=schema,
                    template=template,
                ),
                **request,
            )
            for c, s in zip(conversations, each, strict=True)
        ]
        return [with_objects(schema, output) for output in self._run(prepared, progress)]

    async def agenerate(
        self, prompt: PromptInput, params: SamplingParams | None = None, **request: Any
    ) -> RequestOutput:
        """Complete one prompt. Concurrent calls share the batch."""
        return await self._finish(self._prepare_one(prompt, params, **request))

    async def achat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Tool] | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool | None = None,
        schema: Schema | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> RequestOutput:
        """Answer one conversation, as `chat` does. Concurrent calls share the batch."""
        task = self._one_chat(
            messages,
            params,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            schema=schema,
            template=template,
        )
        return with_objects(schema, await self._finish(self._prepare(task, **request)))

    # -- streams ------------------------------------------------------------------------------------

    def stream(
        self, prompt: PromptInput, params: SamplingParams | None = None, **request: Any
    ) -> Iterator[StreamDelta]:
        """Complete one prompt as a stream. To stop early, close the iterator: this aborts the request."""
        return self._stream(self._prepare_one(prompt, params, **request))

    def stream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Tool] | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool | None = None,
        schema: Schema | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Iterator[StreamDelta]:
        """Answer one conversation as a stream of text, reasoning and calls. Close it as in `stream`."""
        task = self._one_chat(
            messages,
            params,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            schema=schema,
            template=template,
        )
        return self._stream(self._prepare(task, **request))

    def astream(
        self, prompt: PromptInput, params: SamplingParams | None = None, **request: Any
    ) -> AsyncIterator[StreamDelta]:
        """Complete one prompt as an asynchronous stream; otherwise like `stream`."""
        return self._astream(self._prepare_one(prompt, params, **request))

    def astream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Tool] | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool | None = None,
        schema: Schema | None = None,
        template: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> AsyncIterator[StreamDelta]:
        """Answer one conversation as an asynchronous stream; otherwise like `stream_chat`."""
        task = self._one_chat(
            messages,
            params,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            schema=schema,
            template=template,
        )
        return self._astream(self._prepare(task, **request))

    # -- step by step ---------------------------------------------------------------------------------

    def add_request(
        self,
        prompt: PromptInput,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **request: Any,
    ) -> str:
        """Queue a request and return its id. `step` returns its updates."""
        prepared = self._prepare_one(prompt, params, request_id=request_id, **request)
        self._engine_thread.run(self._submit, prepared, self._unclaimed)
        return prepared.name

    def step(self) -> StepUpdate:
        """Run one step for all in-flight requests."""
        self._engine_thread.run(self._advance)
        updates = self._unclaimed.take()
        return StepUpdate(
            tuple(update for update in updates if isinstance(update, StreamDelta)),
            tuple(update for update in updates if isinstance(update, RequestOutput)),
        )

    @property
    def has_unfinished(self) -> bool:
        """Return whether another `step` is needed: requests are in flight, or updates are waiting."""
        return bool(self._unclaimed) or bool(self._dropped) or self._channel.has_unfinished

    def abort(self, request_id: str) -> None:
        """End a request; its result has the finish reason `abort`. Unknown ids are ignored."""
        self._engine_thread.run(self._abort, request_id)

    def stats(self) -> EngineStats:
        """Return the state and the counters of the engine."""
        return self._channel.stats()

    def kernel_times(self) -> KernelTimes | None:
        """Return seconds and calls of each kind of native kernel so far; None with torch kernels."""
        return self._engine_thread.run(self._channel.kernel_times)

    @property
    def facts(self) -> EngineFacts:
        """Return the fixed properties of the engine, including its `system_fingerprint`."""
        return self._channel.facts

    def check(self) -> None:
        """Assert every invariant of scheduler and cache."""
        self._engine_thread.run(self._channel.check)

    def close(self) -> None:
        """Free the model and its memory. In-flight requests are dropped."""
        self._engine_thread.stop()
        self._channel.close()
        self._grammar_checker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- parts ----------------------------------------------------------------------------------------

    def _prepare(self, task: PromptTask, *, request_id: str | None = None, **request: Any) -> PreparedRequest:
        for one in task.grammars:
            with grammar_of(one.field):
                self._grammar_checker.check(one.spec)
        return self._intake.prepare(
            f"request-{next(self._numbers)}", task, now=time.monotonic(), name=request_id, **request
        )

    def _prepare_one(
        self, prompt: PromptInput, params: SamplingParams | None, **request: Any
    ) -> PreparedRequest:
        task = _completion(one_prompt(prompt), one_params(params, self.default_params), _field(None))
        return self._prepare(task, **request)

    def _one_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None,
        *,
        tools: Iterable[Tool] | None,
        **chat: Any,
    ) -> PromptTask:
        params = one_params(params, self.default_params)
        return self._chat_task(one_conversation(messages), params, tools=tools_of(tools), **chat)

    def _chat_task(
        self,
        messages: list[Message],
        params: SamplingParams,
        *,
        tools: list[Tool] | None,
        tool_choice: str | None,
        parallel_tool_calls: bool | None,
        schema: Schema | None,
        template: Mapping[str, Any] | None,
    ) -> PromptTask:
        if not isinstance(tool_choice or "", str):
            raise RequestError(
                'tool_choice must be "auto", "none", "required" or the name of a function', "tool_choice"
            )
        choice = tool_choice or ToolChoice.AUTO
        task = ChatTask(
            messages,
            constrained_by(schema, params),
            grammar_field=_field(schema),
            tools=tools or (),
            tool_choice=ToolChoice(choice) if choice in tuple(ToolChoice) else OnlyTool(choice),
            allows_several_calls=parallel_tool_calls is not False,
            template=template or {},
        )
        return compose(task, self._text)

    # -- on the engine thread -------------------------------------------------------------------------

    def _submit(self, prepared: PreparedRequest, mailbox: Mailbox) -> None:
        self._end_dropped()
        in_flight = InFlightRequest(prepared, self.tokenizer, Delivery(prepared, self._names, mailbox))
        self._names.add(prepared)
        self._hub.submit(in_flight)

    def _abort(self, name: str) -> None:
        request_id = self._names.get(name)
        if request_id is not None:
            self._hub.abort(request_id)

    def _advance(self) -> None:
        """Run one step and deliver every update to its mailbox."""
        self._end_dropped()
        self._hub.receive(REPLICA, self._channel.step())

    def _end_dropped(self) -> None:
        while self._dropped:
            prepared = self._dropped.popleft()
            self._hub.abort(prepared.request_id)
            self._names.free(prepared)

    def _advance_unless(self, mailbox: Mailbox) -> None:
        """Run a step, unless the step of another caller has already filled the mailbox."""
        if not mailbox:
            assert self._channel.has_unfinished, "the engine has lost a request"
            self._advance()

    # -- waiting for answers --------------------------------------------------------------------------

    def _run(self, batch: list[PreparedRequest], progress: bool | None) -> list[RequestOutput]:
        results: dict[str, RequestOutput] = {}
        mailbox = Mailbox()
        submitted: list[PreparedRequest] = []
        try:
            with BatchProgress(len(batch), enabled=progress) as bar:
                for prepared in batch:
                    submitted.append(prepared)
                    self._engine_thread.run(self._submit, prepared, mailbox)
                while len(results) < len(batch):
                    self._engine_thread.run(self._advance_unless, mailbox)
                    for update in mailbox.take():
                        bar.update(update)
                        if isinstance(update, RequestOutput):
                            results[update.request_id] = update
        finally:
            self._dropped.extend(prepared for prepared in submitted if prepared.name not in results)
        return [results[prepared.name] for prepared in batch]

    def _stream(self, prepared: PreparedRequest) -> Iterator[StreamDelta]:
        mailbox = Mailbox()
        finished = False
        try:
            self._engine_thread.run(self._submit, prepared, mailbox)
            while not finished:
                self._engine_thread.run(self._advance_unless, mailbox)
                for update in mailbox.take():
                    finished = isinstance(update, RequestOutput)
                    if isinstance(update, StreamDelta):
                        yield update
        finally:
            # Also runs when the iterator is closed or garbage-collected, so it must not take a lock.
            if not finished:
                self._dropped.append(prepared)

    async def _updates(self, prepared: PreparedRequest) -> AsyncIterator[Update]:
        mailbox = Mailbox()
        finished = False
        try:
            await self._engine_thread.arun(self._submit, prepared, mailbox)
            while not finished:
                await self._engine_thread.arun(self._advance_unless, mailbox)
                for update in mailbox.take():
                    finished = isinstance(update, RequestOutput)
                    yield update
        finally:
            if not finished:
                self._dropped.append(prepared)

    async def _astream(self, prepared: PreparedRequest) -> AsyncIterator[StreamDelta]:
        async for update in self._updates(prepared):
            if isinstance(update, StreamDelta):
                yield update

    async def _finish(self, prepared: PreparedRequest) -> RequestOutput:
        async for update in self._updates(prepared):
            if isinstance(update, RequestOutput):
                return update
        raise AssertionError("a request must end with its result")


def _completion(prompt: Prompt, params: SamplingParams, grammar_field: str) -> PromptTask:
    grammar = params.grammar
    return PromptTask(
        prompt, params, grammars=() if grammar is None else (FieldGrammar(grammar_field, grammar),)
    )


def _field(schema: Schema | None) -> str:
    """Return the name of the field that the grammar of a request came from."""
    return "grammar" if schema is None else "schema"
