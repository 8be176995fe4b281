"""Detect the family of a model from its chat template, which renders the model's own answers."""

import re

import msgspec

from octavo.dialect.families import HERMES_OPEN, MISTRAL_OPEN, PYTHON_TAG
from octavo.dialect.reasoning import OPEN, Reasons

CALL_ID_LENGTH = 24


class Dialect(msgspec.Struct, frozen=True):
    """How a model writes tool calls and reasoning."""

    family: str  # a key of `reader.FAMILIES`
    has_reasoning: bool
    renders_tools: bool  # the template supports tools; else see `plain_text.in_plain_words`
    markers: tuple[str, ...] = ()  # special tokens that the family needs in the text
    call_id_length: int = CALL_ID_LENGTH


def dialect_of(template: str) -> Dialect:
    """Return the dialect; `template` is the source of all templates of the model."""
    has_reasoning = OPEN in template
    renders_tools = re.search(r"\btools\b", template) is not None
    if MISTRAL_OPEN in template:
        # Mistral's templates reject ids of any other length.
        markers = (MISTRAL_OPEN, "[ARGS]", "[CALL_ID]")
        return Dialect("mistral", has_reasoning, renders_tools, markers, call_id_length=9)
    if HERMES_OPEN in template:
        return Dialect("hermes", has_reasoning, renders_tools)
    if "<|start_header_id|>" in template and renders_tools:
        return Dialect("llama", has_reasoning, renders_tools, (PYTHON_TAG,))
    if "<start_of_turn>" in template:
        return Dialect("gemma", has_reasoning, renders_tools)
    return Dialect("hermes", has_reasoning, renders_tools)


def reasons_after(prompt: str, dialect: Dialect) -> Reasons:
    """Return whether the answer has reasoning. Some templates end with the tag: reasoning has then begun."""
    if not dialect.has_reasoning:
        return Reasons.NEVER
    return Reasons.BEGUN if prompt.rstrip().endswith(OPEN) else Reasons.MAYBE
