"""The server under load: its address, its model, and the bodies of requests to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.serve.prompts import PlannedRequest, PromptVocabulary
from octavo.conformance.target import error_message
from octavo.conformance.transport import HttpTransport, Reply, Request, Unreachable
from octavo.errors import ConfigError, OctavoError

FIND_SECONDS = 30.0  # timeout for requests to /models and /tokenize


class PromptStyle(StrEnum):
    IDS = "ids"  # token ids to /completions: exact lengths
    TEXT = "text"  # words to /completions
    CHAT = "chat"  # one message to /chat/completions: the server's template adds tokens


@dataclass(frozen=True)
class LoadTarget:
    """A server and how to send requests to it. Made by `find_target`."""

    transport: HttpTransport
    model: str
    api_key: str | None = None
    style: PromptStyle = PromptStyle.IDS
    vocabulary: PromptVocabulary = field(default_factory=lambda: PromptVocabulary(()))
    ignores_eos: bool = True  # answers have exactly the requested length
    counts_chunks: bool = False  # request token counts with every chunk: exact, but more work
    more: Mapping[str, Any] = field(default_factory=dict)  # additional fields of every request
    listed: tuple[str, ...] = ()  # models that the server lists
    context: int | None = None  # maximum tokens per request, if the server reports it
    is_octavo: bool = False  # then it can report queueing times

    @property
    def url(self) -> str:
        return self.transport.url

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def path(self) -> str:
        kind = "/chat/completions" if self.style is PromptStyle.CHAT else "/completions"
        return self.transport.base + kind

    def body(self, planned: PlannedRequest) -> bytes:
        options = {"include_usage": True}
        if self.counts_chunks:
            options["continuous_usage_stats"] = True
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        if self.ignores_eos:
            fields["ignore_eos"] = True
        if self.is_octavo:
            fields["octavo"] = True
        return msgspec.json.encode(fields | self._prompt(planned) | dict(self.more))

    def _prompt(self, planned: PlannedRequest) -> dict[str, Any]:
        if self.style is PromptStyle.IDS:
            return {"prompt": planned.token_ids(self.vocabulary)}
        text = planned.text(self.vocabulary)
        if self.style is PromptStyle.TEXT:
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text.strip()}]}


def find_target(
    url: str,
    *,
    model: str = "",
    api_key: str | None = None,
    style: PromptStyle = PromptStyle.IDS,
    tokenizer: str | None = None,
    ignores_eos: bool = True,
    counts_chunks: bool = False,
    more: Mapping[str, Any] | None = None,
) -> LoadTarget:
    """Query the server's models and tokens. `tokenizer` is a checkpoint for servers without /tokenize."""
    transport = HttpTransport.to(url, FIND_SECONDS)
    target = LoadTarget(
        transport, model, api_key, style, PromptVocabulary(()), ignores_eos, counts_chunks, more or {}
    )
    target = _with_model(target)
    return replace(target, vocabulary=_vocabulary(target, tokenizer))


def advice(status: int, message: str, target: LoadTarget) -> str:
    """Return what a status other than 200 means and what to do about it."""
    result = f"the server returned {status}" + (f" ({message})" if message else "")
    if status in (401, 403):
        return f"{result}: it requires a key; set OPENAI_API_KEY or use --api-key"
    if status == 404 and target.listed and target.model not in target.listed:
        return (
            f"{result}: it has no model {target.model!r}; use --model with one of {', '.join(target.listed)}"
        )
    if status == 404:
        return (
            f"{result} for {target.path} and the model {target.model!r}: check the model name (--model) and"
            " the URL (with its full path); if the server has no /completions, use --prompts chat"
        )
    if status in (400, 422) and target.style is PromptStyle.IDS:
        return (
            f"{result}: if it does not accept token ids, use --prompts text or chat; if the requests are too"
            " long, shorten them with --prompt and --output"
        )
    if status in (400, 422):
        return f"{result}: if it does not support ignore_eos, use --no-ignore-eos"
    if status in (429, 503):
        return f"{result}: it is overloaded or not ready; wait, or reduce the load"
    return f"{result}: see the server log"


def _with_model(target: LoadTarget) -> LoadTarget:
    """Add the server's models; use the first one if no model was given."""
    try:
        reply = _get(target, "/models")
    except Unreachable as problem:
        raise OctavoError(
            f"cannot connect to {target.url} ({problem}): is the server running, and is the URL correct?"
        ) from problem
    if reply.status in (401, 403):
        raise ConfigError(advice(reply.status, error_message(reply), target))
    listed = {model["id"]: model for model in _models(reply)}
    if not target.model and not listed:
        raise ConfigError(f"{target.url}/models lists no models (status {reply.status}): use --model")
    model = target.model or next(iter(listed))
    facts = listed.get(model, {})
    context = facts.get("max_model_len")
    return replace(
        target,
        model=model,
        listed=tuple(listed),
        context=context if isinstance(context, int) else None,
        is_octavo=facts.get("owned_by") == "octavo",
    )


def _models(reply: Reply) -> list[dict[str, Any]]:
    content = reply.json
    data = content.get("data") if reply.status == 200 and isinstance(content, dict) else None
    if not isinstance(data, list):
        return []
    return [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]


def _vocabulary(target: LoadTarget, tokenizer: str | None) -> PromptVocabulary:
    if tokenizer is not None:
        return _local_vocabulary(tokenizer)
    if target.style is not PromptStyle.IDS:
        return PromptVocabulary(())
    try:
        return PromptVocabulary.of_text(lambda text: _ask_for_tokens(target, text))
    except Unreachable as problem:
        raise OctavoError(
            f"lost the connection during /tokenize ({problem}): is the server still running?"
        ) from problem


def _local_vocabulary(name: str) -> PromptVocabulary:
    """Read the vocabulary of a checkpoint, or of a folder with only a tokenizer."""
    from octavo.checkpoint import open_checkpoint
    from octavo.text.huggingface import text_assets_from_directory
    from octavo.text.tokenizer import Tokenizer

    is_folder = (Path(name) / "tokenizer.json").exists()
    tokenizer = Tokenizer(text_assets_from_directory(Path(name)) if is_folder else open_checkpoint(name).text)
    return PromptVocabulary.of_words(lambda text: tokenizer.encode(text, add_special_tokens=False))


def _ask_for_tokens(target: LoadTarget, text: str) -> Sequence[int]:
    """Call /tokenize next to or below /v1. vLLM, llama.cpp and Octavo have different names for the text."""
    fields = {"model": target.model, "prompt": text, "content": text, "add_special_tokens": False}
    base = target.transport.base
    for base_path in dict.fromkeys((base.removesuffix("/v1"), base)):
        at_base = replace(target, transport=replace(target.transport, base=base_path))
        reply = _post(at_base, "/tokenize", fields)
        content = reply.json
        tokens = content.get("tokens") if reply.status == 200 and isinstance(content, dict) else None
        if isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens):
            return tokens
    if target.listed and target.model not in target.listed:
        raise ConfigError(advice(404, error_message(reply), target))
    raise ConfigError(
        "the server has no usable /tokenize: use --tokenizer CHECKPOINT (of the same model) or --prompts text"
    )


def _get(target: LoadTarget, path: str) -> Reply:
    return target.transport(Request("GET", path, target.headers))


def _post(target: LoadTarget, path: str, fields: Mapping[str, Any]) -> Reply:
    headers = target.headers | {"content-type": "application/json"}
    return target.transport(Request("POST", path, headers, msgspec.json.encode(fields)))
