"""POST /v1/completions"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.intake import PreparedRequest, Prompt
from octavo.frontend.output import Choice, RequestOutput, StreamDelta
from octavo.frontend.text_model import TextModel
from octavo.server.generation import Generation, raise_if_failed
from octavo.server.http.body import read_request
from octavo.server.http.errors import invalid, unsupported
from octavo.server.http.keys import caller
from octavo.server.http.sse import encode
from octavo.server.openai.logprobs import LegacyLogprobs, prompt_logprobs
from octavo.server.openai.params import completion_params, requested_grammar
from octavo.server.openai.response import ChunkFrame, extras, framing, head, usage, usage_of
from octavo.server.openai.schema import CompletionRequest
from octavo.server.openapi import EVENTS, GENERATION_ERRORS, REPEATED, failures, json_body
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState
from octavo.server.text_work import TextWork

router = APIRouter()


@router.post(
    "/v1/completions",
    openapi_extra=json_body(CompletionRequest) | REPEATED,
    responses={200: EVENTS, **failures(*GENERATION_ERRORS)},
)
async def completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, CompletionRequest, state.options.max_body)
    check_supported(body)
    state.check_model(body.model)
    work = text_work(body, state.model)
    return await respond_once(
        request, body, work, partial(CompletionAnswer, body), prefix="cmpl-", framing=framing(body)
    )


# -- body to tasks -----------------------------------------------------------------------------------------


def check_supported(body: CompletionRequest) -> None:
    if body.suffix and body.echo:
        raise unsupported("echo", "echo with suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "best_of other than n")
    if body.stream and body.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "prompt_logprobs in a stream")


def text_work(body: CompletionRequest, model: TextModel) -> TextWork:
    params, grammar = completion_params(body, model.defaults), requested_grammar(body)
    if grammar is not None:
        params = msgspec.structs.replace(params, grammar=grammar.spec)
    work = TextWork(
        as_prompts(body),
        params,
        add_special_tokens=body.add_special_tokens is not False,
        grammars=() if grammar is None else (grammar,),
    )
    return work.before(body.suffix, model.tokenizer) if body.suffix else work


def as_prompts(body: CompletionRequest) -> list[Prompt]:
    """Return the prompts of a body, whose `prompt` is a text, token ids or a list of either."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: the list is empty", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def shows_only_prompt(body: CompletionRequest) -> bool:
    return bool(body.echo) and body.max_tokens == 0


# -- output to response ------------------------------------------------------------------------------------


class Echo:
    """The prompt text of one choice, for `echo`, and its logprobs."""

    def __init__(self, generation: Generation, prompt: str | None, prompt_ids: tuple[int, ...]) -> None:
        tokenizer = generation.state.model.tokenizer
        skips = generation.prepared[0].params.skip_special_tokens
        self.text = tokenizer.decode(prompt_ids, skip_special_tokens=skips) if prompt is None else prompt
        self.logprobs = LegacyLogprobs(tokenizer, skip_special_tokens=skips)


class CompletionAnswer:
    """Encodes the output as a body or as events. An event with only text costs one encoding and one join."""

    def __init__(self, body: CompletionRequest, generation: Generation) -> None:
        self._generation = generation
        self._body = body
        self.framing = framing(body)
        self._frame = ChunkFrame(head(generation, "text_completion"), has_usage=body.includes_usage)
        self._wants_logprobs = body.logprobs is not None
        self._is_plain = not (self._wants_logprobs or body.return_token_ids or body.has_continuous_usage)
        self._shows_only_prompt = shows_only_prompt(body)
        self._plain_starts: dict[int, bytes] = {}  # of choices that have started
        self._plain_end = b',"logprobs":null,"finish_reason":null}' + self._frame.end
        self._echoes: dict[int, Echo] = {}
        # The prompt's logprobs arrive with choice 0: until then, deltas of the other choices are held back.
        self._held: dict[str, list[StreamDelta]] | None = (
            {one.name: [] for one in generation.prepared} if body.echo and self._wants_logprobs else None
        )
        self._prompt_logprobs: dict[str, tuple[Any, ...]] = {}
        self._num_completion = 0

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        if self._is_plain and delta.finish_reason is None and not self._shows_only_prompt:
            start = self._plain_starts.get(self._generation.choice_index(delta))
            if start is not None:
                return ((delta, start + encode(delta.text) + self._plain_end if delta.text else b""),)
        raise_if_failed(delta)
        if self._held is not None and delta.request_id in self._held:
            return self._release(delta, self._held)
        return ((delta, self._full(delta)),)

    def encode_end(self) -> bytes:
        more = extras(self._body, self._generation)
        if self._body.includes_usage:
            return self._frame.chunk(b"", usage=self._usage(), **more)
        return self._frame.chunk(b"", **more) if more else b""

    def full_body(self) -> dict[str, Any]:
        generation = self._generation
        n = generation.prepared[0].params.n
        answer = head(generation, "text_completion") | {
            "choices": [
                self._whole_choice(output, choice, index * n + choice.index)
                for index, output in sorted(generation.results.items())
                for choice in output.choices
            ],
            "usage": self._usage(),
        }
        return answer | extras(self._body, generation)

    def _whole_choice(self, output: RequestOutput, choice: Choice, index: int) -> dict[str, Any]:
        body, tokenizer = self._body, self._generation.state.model.tokenizer
        echo = Echo(self._generation, output.prompt, output.prompt_ids)
        if self._shows_only_prompt:
            choice = msgspec.structs.replace(
                choice, text="", token_ids=(), logprobs=None if choice.logprobs is None else ()
            )
        text, logprobs = choice.text, None
        if choice.logprobs is not None:
            logprobs = echo.logprobs.of_answer(choice.logprobs) if not body.echo else None
        if body.echo:
            text = echo.text + choice.text
            if choice.logprobs is not None:
                logprobs = echo.logprobs.of_prompt(
                    output.prompt_ids, output.prompt_logprobs or (), choice.logprobs
                )
        shown: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        if body.return_token_ids:
            shown |= {"prompt_token_ids": output.prompt_ids, "token_ids": choice.token_ids}
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_logprobs(tokenizer, output.prompt_logprobs)
        return shown

    def _usage(self) -> dict[str, Any]:
        generation = self._generation
        hidden = generation.prepared[0].params.n * len(generation.prepared) if self._shows_only_prompt else 0
        return usage_of(generation.results.values(), hidden=hidden)

    def _release(
        self, delta: StreamDelta, held: dict[str, list[StreamDelta]]
    ) -> Sequence[tuple[StreamDelta, bytes]]:
        if delta.choice != 0:
            held[delta.request_id].append(delta)
            return ()
        self._prompt_logprobs[delta.request_id] = delta.prompt_logprobs
        return [(one, self._full(one)) for one in (delta, *held.pop(delta.request_id))]

    def _full(self, delta: StreamDelta) -> bytes:
        index, prompt = self._generation.choice_index(delta), self._generation.prompt_of(delta)
        is_first = index not in self._plain_starts
        self._plain_starts[index] = self._frame.start + b'{"index":' + str(index).encode() + b',"text":'
        if self._shows_only_prompt:
            delta = msgspec.structs.replace(delta, text="", token_ids=(), logprobs=())
        if is_first:
            self._echoes[index] = Echo(self._generation, prompt.prompt, prompt.prompt_ids)
        echo = self._echoes[index]
        choice: dict[str, Any] = {
            "index": index,
            "text": echo.text + delta.text if is_first and self._body.echo else delta.text,
            "logprobs": self._logprobs(echo, delta, prompt, is_first) if self._wants_logprobs else None,
            "finish_reason": delta.finish_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = delta.token_ids
            choice["prompt_token_ids"] = prompt.prompt_ids if is_first else None
        more: dict[str, Any] = {}
        if self._body.has_continuous_usage:
            self._num_completion += len(delta.token_ids)
            num_prompt = sum(len(one.prompt_ids) for one in self._generation.prepared)
            more["usage"] = usage(num_prompt, self._num_completion, delta.num_cached)
        return self._frame.chunk(encode(choice), **more)

    def _logprobs(
        self, echo: Echo, delta: StreamDelta, prompt: PreparedRequest, is_first: bool
    ) -> dict[str, Any]:
        if not (is_first and self._body.echo):
            return echo.logprobs.of_answer(delta.logprobs)
        scores = self._prompt_logprobs.get(delta.request_id, ())
        return echo.logprobs.of_prompt(prompt.prompt_ids, scores, delta.logprobs)
