"""The model interface that commands use, and functions to open a model. Tests substitute a scripted model."""

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from octavo.config import EngineOptions
from octavo.errors import ConfigError
from octavo.protocol import EngineFacts, EngineStats, SamplingParams

if TYPE_CHECKING:
    from octavo.frontend.output import RequestOutput, StreamDelta
    from octavo.text.chat_template import ChatTemplate

Message = dict[str, Any]


class LanguageModel(Protocol):
    """The part of `octavo.LLM` that the terminal uses."""

    name: str
    default_params: SamplingParams
    chat_template: "ChatTemplate"

    @property
    def facts(self) -> EngineFacts: ...

    def generate(
        self, prompts: Any, params: Any = None, *, progress: bool = False
    ) -> "list[RequestOutput]": ...

    def chat(self, messages: Any, params: Any = None, *, progress: bool = False) -> "list[RequestOutput]": ...

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> "Iterator[StreamDelta]": ...

    def stream_chat(self, messages: Any, params: SamplingParams | None = None) -> "Iterator[StreamDelta]": ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class OpenModel(Protocol):
    def __call__(self, options: EngineOptions, *, progress: bool) -> LanguageModel: ...


def open_llm(options: EngineOptions, *, progress: bool) -> LanguageModel:
    """Load the model. Imports torch; nothing else in this module does."""
    from octavo.llm import LLM

    return LLM(**options.model_dump(), progress=progress)


def require_model(options: EngineOptions, command: str) -> None:
    if options.model is None and options.checkpoint_path is None:
        raise ConfigError(f"no model: name one, as in 'octavo {command} MODEL', or set OCTAVO_MODEL")


def with_seed(params: SamplingParams) -> SamplingParams:
    """Return `params` with a definite seed, so that it can be shown and the answer reproduced."""
    if params.seed is not None:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(32))


def checked(params: SamplingParams, llm: LanguageModel) -> SamplingParams:
    """Return `params`, or raise the error that the next request would raise."""
    from octavo.frontend.intake import RequestLimits, check_params

    check_params(params, RequestLimits(llm.facts.vocab_size, llm.facts.max_model_len))
    return params
