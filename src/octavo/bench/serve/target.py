"""The server under load: where it is, what it serves, and how a request to it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.serve.prompts import PlannedRequest, Vocabulary
from octavo.conformance.target import error_message
from octavo.conformance.transport import HttpTransport, Reply, Request, Unreachable
from octavo.errors import ConfigError, OctavoError

FIND_SECONDS = 30.0  # for an answer about models or tokens


class PromptStyle(StrEnum):
    IDS = "ids"  # token ids to /completions: exact
    TEXT = "text"  # words to /completions
    CHAT = "chat"  # one message to /chat/completions: the server's template adds tokens


@dataclass(frozen=True)
class Target:
    """Made by `find_target`. Nothing changes in it while a load runs."""

    transport: HttpTransport
    model: str
    api_key: str | None = None
    style: PromptStyle = PromptStyle.IDS
    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary(()))
    ignores_eos: bool = True  # answers are as long as asked
    counts_chunks: bool = False  # asks for the number of tokens with every chunk: exact, and more work
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields of every request
    listed: tuple[str, ...] = ()  # models that the server says it has
    context: int | None = None  # tokens of the longest request, if the server says so
    is_octavo: bool = False  # it can say how long a request waited

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
) -> Target:
    """Asks the server for models and tokens. `tokenizer` is a checkpoint, for one that tells no tokens."""
    transport = HttpTransport.to(url, FIND_SECONDS)
    target = Target(transport, model, api_key, style, Vocabulary(()), ignores_eos, counts_chunks, more or {})
    target = _with_model(target)
    return replace(target, vocabulary=_vocabulary(target, tokenizer))


def advice(status: int, message: str, target: Target) -> str:
    """What an answer other than 200 means, and what to do about it."""
    said = f"the server answered {status}" + (f" ({message})" if message else "")
    if status in (401, 403):
        return f"{said}: it wants a key; set OPENAI_API_KEY or give --api-key"
    if status == 404 and target.listed and target.model not in target.listed:
        return (
            f"{said}: it has no model {target.model!r}; give --model with one of {', '.join(target.listed)}"
        )
    if status == 404:
        return (
            f"{said} to {target.path} for the model {target.model!r}: is the model's name right (--model),"
            " and does the API lie there (URL with its whole path)? Without /completions, try --prompts chat"
        )
    if status in (400, 422) and target.style is PromptStyle.IDS:
        return (
            f"{said}: if it does not take token ids, give --prompts text or chat; if the requests are too"
            " long for it, --prompt and --output make them shorter"
        )
    if status in (400, 422):
        return f"{said}: if it does not know ignore_eos, give --no-ignore-eos"
    if status in (429, 503):
        return f"{said}: it is overloaded or not ready; wait until it is, or send less"
    return f"{said}: its log should say why"


def _with_model(target: Target) -> Target:
    """The same server, and the first model of its list if none was named."""
    try:
        reply = _get(target, "/models")
    except Unreachable as problem:
        raise OctavoError(
            f"no server answers at {target.url} ({problem}): is it running, and is this its address?"
        ) from problem
    if reply.status in (401, 403):
        raise ConfigError(advice(reply.status, error_message(reply), target))
    listed = {model["id"]: model for model in _models(reply)}
    if not target.model and not listed:
        raise ConfigError(f"{target.url}/models lists no models (status {reply.status}): give --model")
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


def _vocabulary(target: Target, tokenizer: str | None) -> Vocabulary:
    if tokenizer is not None:
        return _local_vocabulary(tokenizer)
    if target.style is not PromptStyle.IDS:
        return Vocabulary(())
    try:
        return Vocabulary.of_text(lambda text: _ask_for_tokens(target, text))
    except Unreachable as problem:
        raise OctavoError(f"the server went away while it was asked for tokens ({problem})") from problem


def _local_vocabulary(name: str) -> Vocabulary:
    """Of a checkpoint, or of a folder with a tokenizer and nothing else."""
    from octavo.checkpoint import open_checkpoint
    from octavo.text.huggingface import text_assets_from_directory
    from octavo.text.tokenizer import Tokenizer

    is_folder = (Path(name) / "tokenizer.json").exists()
    tokenizer = Tokenizer(text_assets_from_directory(Path(name)) if is_folder else open_checkpoint(name).text)
    return Vocabulary.of_words(lambda text: tokenizer.encode(text, add_special_tokens=False))


def _ask_for_tokens(target: Target, text: str) -> Sequence[int]:
    """/tokenize, beside /v1 or in it, as vLLM, llama.cpp and we have it: each has its name for the text."""
    fields = {"model": target.model, "prompt": text, "content": text, "add_special_tokens": False}
    base = target.transport.base
    for place in dict.fromkeys((base.removesuffix("/v1"), base)):
        beside = replace(target, transport=replace(target.transport, base=place))
        reply = _post(beside, "/tokenize", fields)
        content = reply.json
        tokens = content.get("tokens") if reply.status == 200 and isinstance(content, dict) else None
        if isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens):
            return tokens
    if target.listed and target.model not in target.listed:
        raise ConfigError(advice(404, error_message(reply), target))
    raise ConfigError(
        "the server has no /tokenize that tells its tokens: give --tokenizer CHECKPOINT (the same model's),"
        " or --prompts text"
    )


def _get(target: Target, path: str) -> Reply:
    return target.transport(Request("GET", path, target.headers))


def _post(target: Target, path: str, fields: Mapping[str, Any]) -> Reply:
    headers = target.headers | {"content-type": "application/json"}
    return target.transport(Request("POST", path, headers, msgspec.json.encode(fields)))
