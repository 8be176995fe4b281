"""Render messages to a prompt with the chat template of the checkpoint."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from octavo.errors import TemplateError
from octavo.text.assets import TextAssets
from octavo.text.template_sandbox import BoundedEnvironment, Budget, LimitExceeded

MAX_SECONDS = 2.0
MAX_CHARS = 4_000_000  # about a million tokens
MAX_TEMPLATE_CHARS = 200_000  # ten times the longest templates in use
MAX_DEPTH = 100  # nesting of lists and objects
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_CUT_MARK = "[the text to continue ends here] "  # ends in a space to detect whether the template trims


class ChatTemplate:
    """The chat templates of a checkpoint. They are untrusted code and run in `template_sandbox`."""

    def __init__(
        self,
        assets: TextAssets,
        *,
        max_seconds: float = MAX_SECONDS,
        max_chars: int = MAX_CHARS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._sources = dict(assets.named_templates)
        if assets.chat_template is not None:
            self._sources["default"] = assets.chat_template
        special = {
            "bos_token": assets.bos_token,
            "eos_token": assets.eos_token,
            "pad_token": assets.pad_token,
            "unk_token": assets.unk_token,
        }
        self._special_tokens = {name: token for name, token in special.items() if token is not None}
        self._max_seconds = max_seconds
        self._max_chars = max_chars
        self._environment = _environment(now)
        self._compiled: dict[str, jinja2.Template] = {}

    @property
    def source(self) -> str:
        """Return the source of all templates, to detect which features they support. Do not run it."""
        return "\n".join(self._sources.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # so that `kwargs` may contain `self`
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return the prompt with its special tokens as text: encode it with `add_special_tokens=False`.

        With `continue_final_message`, the last message is left open and no generation prompt is added.
        `kwargs` are additional template variables.
        """
        conversation = _plain_messages(messages)
        final_text = _mark_end(conversation) if continue_final_message else None
        variables = {
            **self._special_tokens,
            **_plain(kwargs),
            "messages": conversation,
            "tools": _plain(tools) if tools is not None else None,
            "documents": _plain(kwargs.get("documents")),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        rendered = self._run(self._template(with_tools=tools is not None), variables)
        return rendered if final_text is None else _cut_after(rendered, final_text)

    def _template(self, *, with_tools: bool) -> jinja2.Template:
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise TemplateError(
                "This model has no chat template and accepts only plain prompts: use `generate`, or choose "
                "an instruction-tuned model."
            )
        if name not in self._compiled:
            self._compiled[name] = _compile(self._environment, self._sources[name])
        return self._compiled[name]

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        budget = Budget(self._max_seconds, self._max_chars)
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._environment.generate(template, variables, budget):
                num_chars += len(piece)
                if num_chars > self._max_chars:
                    raise LimitExceeded(f"its output is longer than {self._max_chars} characters")
                pieces.append(piece)
        except LimitExceeded as error:
            raise TemplateError(f"The chat template was stopped: {error}.") from error
        except RejectedByTemplate as error:
            raise TemplateError(f"The chat template rejected these messages: {_public(error)}") from error
        except SecurityError as error:
            raise TemplateError(
                f"The chat template attempted a forbidden operation: {_public(error)}"
            ) from error
        except Exception as error:  # a template can cause any exception
            raise TemplateError(
                f"The chat template failed on these messages ({type(error).__name__}: {_public(error)}). "
                "Compare roles, content and tool calls with the examples in the model card."
            ) from error
        return "".join(pieces)


class RejectedByTemplate(Exception):
    """The template called `raise_exception`."""


def _environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    def raise_exception(message: object) -> None:
        raise RejectedByTemplate(str(message))

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment = BoundedEnvironment()
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _compile(environment: BoundedEnvironment, source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"The chat template has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}."
        )
    try:
        return environment.from_string(source)
    except Exception as error:  # syntax, or nesting too deep for the compiler
        raise TemplateError(
            f"The model's chat template is not valid ({type(error).__name__}: {error}). "
            "Fetch the checkpoint again."
        ) from error


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not all(isinstance(m, Mapping) for m in messages):
        raise TemplateError("Messages must be a list of mappings, each with a `role` and a `content`.")
    if not messages:
        raise TemplateError("There are no messages to render: pass at least one.")
    return [_with_reasoning(_plain(message)) for message in messages]


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Set the reasoning of a message under the names that templates use, as transformers does."""
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _public(error: Exception) -> str:
    """Return the message without memory addresses, because it is sent to clients."""
    return _ADDRESS.sub("", str(error))


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a copy made of JSON types only: a template must not reach methods of any other type."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # here and below: a subclass, such as an enumeration, has additional methods
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if depth > MAX_DEPTH:
        raise TemplateError(
            f"Messages, tools and template variables may be nested at most {MAX_DEPTH} levels deep."
        )
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    raise TemplateError(
        f"Messages, tools and template variables must be plain JSON values, not {type(value).__name__}."
    )


def _mark_end(conversation: list[dict[str, Any]]) -> str:
    """Append a mark to the text of the last message, to find its end in the output; return that text."""
    last = conversation[-1]
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + _CUT_MARK
        return content
    for block in reversed(content if isinstance(content, list) else []):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            text: str = block["text"]
            block["text"] = text + _CUT_MARK
            return text
    raise TemplateError("The final message has no text to continue.")


def _cut_after(rendered: str, final_text: str) -> str:
    end = rendered.rfind(_CUT_MARK.strip())
    if end < 0 or final_text.strip() not in rendered:
        raise TemplateError("The final message cannot be continued: the chat template does not render it.")
    kept_space = rendered.startswith(_CUT_MARK, end)
    return rendered[:end] if kept_space else rendered[:end].rstrip()
