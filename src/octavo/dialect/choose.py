"""Which family a model belongs to: its chat template tells, because it shows the model its own answers."""

import re

import msgspec

from octavo.dialect.families import HERMES_OPEN, MISTRAL_OPEN, PYTHON_TAG
from octavo.dialect.reasoning import OPEN, Reasons

CALL_ID_LENGTH = 24


class Dialect(msgspec.Struct, frozen=True):
    """How a model writes what is not text."""

    family: str  # of `reader.FAMILIES`
    has_reasoning: bool
    renders_tools: bool  # the template shows tools to the model; else see `told.in_plain_words`
    markers: tuple[str, ...] = ()  # special tokens that the family looks for: they must not be left out
    call_id_length: int = CALL_ID_LENGTH


def dialect_of(template: str) -> Dialect:
    """`template`: the source of all of a model's templates."""
    has_reasoning = OPEN in template
    renders_tools = re.search(r"\btools\b", template) is not None
    if MISTRAL_OPEN in template:
        # Mistral's templates refuse ids of any other length.
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
    """Some templates end with the tag, so that the answer begins with a thought."""
    if not dialect.has_reasoning:
        return Reasons.NEVER
    return Reasons.BEGUN if prompt.rstrip().endswith(OPEN) else Reasons.MAYBE
