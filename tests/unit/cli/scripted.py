"""A model with scripted answers, for tests of commands without a real model."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from data.engine_facts import engine_facts
from data.json_types import Json
from octavo.config import EngineOptions
from octavo.errors import OctavoError, TemplateError
from octavo.frontend.output import Choice, RequestOutput, StreamDelta
from octavo.protocol import EngineFacts, EngineStats, SamplingParams, Timings
from octavo.text.chat_template import ChatTemplate

INTERRUPT = "<Ctrl-C>"  # a scripted token: the user presses Ctrl-C while it is computed
THOUGHT = "<thought>"  # prefix of a scripted token that is reasoning


class ScriptedTemplate(ChatTemplate):
    def __init__(self, is_missing: bool) -> None:
        self._is_missing = is_missing

    def render(self, messages: Sequence[Mapping[str, Json]], /, **values: Json) -> str:
        if self._is_missing:
            raise TemplateError("this model has no chat template")
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


@dataclass
class ScriptedLLM:
    """Gives its answers in order: lists of tokens, or errors to raise. Each word of a prompt is a token."""

    script: list[list[str] | OctavoError]
    name: str = "scripted"
    has_template: bool = True
    default_params: SamplingParams = field(default_factory=SamplingParams)
    asked: list[Json] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    num_given_up: int = 0
    is_closed: bool = False
    options: EngineOptions | None = None
    _prompt_tokens: int = 0
    _cached: int = 0

    def __post_init__(self) -> None:
        self.chat_template: ChatTemplate = ScriptedTemplate(not self.has_template)

    def generate(
        self, prompts: Sequence[Json], params: SamplingParams | None = None, *, progress: bool = False
    ) -> list[RequestOutput]:
        return [self._result(prompt, params or self.default_params) for prompt in prompts]

    def chat(
        self, messages: Sequence[Json], params: SamplingParams | None = None, *, progress: bool = False
    ) -> list[RequestOutput]:
        return self.generate(messages, params, progress=progress)

    def stream(self, prompt: Json, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        tokens = self._take(prompt, params or self.default_params)
        return self._deltas(tokens)

    def stream_chat(self, messages: Json, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        return self.stream(messages, params)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=0,
            num_waiting=0,
            blocks_total=100,
            blocks_free=90,
            blocks_cached=5,
            steps=7,
            tokens_computed=0,
            prompt_tokens=self._prompt_tokens,
            prompt_tokens_cached=0,
            tokens_sampled=3,
            preemptions=0,
        )

    @property
    def facts(self) -> EngineFacts:
        return engine_facts(
            vocab_size=50,
            max_model_len=1000,
            block_size=16,
            num_blocks=100,
            device="cpu",
            dtype="float32",
            kv_bytes=1,
            system_fingerprint="fp_0123456789ab",
        )

    def close(self) -> None:
        self.is_closed = True

    def _take(self, prompt: Json, params: SamplingParams) -> list[str]:
        self.asked.append(prompt)
        self.params.append(params)
        answer = self.script.pop(0)
        if isinstance(answer, OctavoError):
            raise answer
        words = (
            [len(str(m["content"]).split()) for m in prompt]
            if isinstance(prompt, list)
            else [len(prompt.split())]
        )
        self._prompt_tokens += sum(words)
        self._cached = sum(words[:-1])
        return answer

    def _deltas(self, tokens: list[str]) -> Iterator[StreamDelta]:
        cached = self._cached
        try:
            for token in tokens:
                if token == INTERRUPT:
                    raise KeyboardInterrupt
                thought = token.removeprefix(THOUGHT) if token.startswith(THOUGHT) else ""
                text = "" if thought else token
                yield StreamDelta(
                    request_id="r",
                    choice=0,
                    text=text,
                    reasoning=thought,
                    token_ids=(1,),
                    num_cached=cached,
                )
            yield StreamDelta(
                request_id="r", choice=0, text="", token_ids=(2,), finish_reason="stop", num_cached=cached
            )
        except (GeneratorExit, KeyboardInterrupt):
            self.num_given_up += 1
            raise

    def _result(self, prompt: Json, params: SamplingParams) -> RequestOutput:
        choices = []
        for index in range(params.n):
            tokens = self._take(prompt, params)
            choice = Choice(
                index=index,
                text="".join(token for token in tokens if not token.startswith(THOUGHT)),
                reasoning="".join(token.removeprefix(THOUGHT) for token in tokens if THOUGHT in token)
                or None,
                token_ids=tuple(range(len(tokens))),
                logprobs=None,
                finish_reason="stop",
                timings=Timings(0.1, 0.2, 0.3),
            )
            choices.append(choice)
        return RequestOutput(
            request_id="r",
            prompt=str(prompt),
            prompt_ids=(1, 2, 3),
            prompt_logprobs=None,
            choices=tuple(choices),
            num_cached=2,
            seed=params.seed or 0,
        )


Scripted = type[ScriptedLLM]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


class KeyboardlessStdin(io.StringIO):
    """Stdin of a terminal without input."""

    def isatty(self) -> bool:
        return True


class RunCommand(Protocol):
    def __call__(self, *argv: str, stdin: str | None = "", llm: ScriptedLLM | None = None) -> Ran:
        """Run a command in this process; `stdin=None` is a terminal without input."""
