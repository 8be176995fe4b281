"""A checkpoint as far as text goes: how it writes, and how it is written to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from octavo.checkpoint import Checkpoint
from octavo.dialect.choose import Dialect, dialect_of
from octavo.errors import CheckpointError, RequestError
from octavo.protocol import SamplingParams
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class TextModel:
    name: str  # as clients ask for it
    assets: TextAssets
    tokenizer: Tokenizer
    template: ChatTemplate
    dialect: Dialect
    defaults: SamplingParams

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, name: str | None = None) -> Self:
        template = ChatTemplate(checkpoint.text)
        return cls(
            name=name or checkpoint.name,
            assets=checkpoint.text,
            tokenizer=Tokenizer(checkpoint.text),
            template=template,
            dialect=dialect_of(template.source),
            defaults=default_params(checkpoint.generation_config),
        )


def default_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """What the checkpoint recommends for requests that say nothing: only what `generation_config.json` says;
    where it asks for greedy decoding, that."""
    values = {
        name: generation_config[name] for name in RECOMMENDED if generation_config.get(name) is not None
    }
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise CheckpointError(
            f"generation_config.json of the checkpoint has a bad value: {error}. Correct {error.param} there,"
            " or remove it."
        ) from error
