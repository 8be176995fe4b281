"""The text side of a checkpoint: tokenizer, chat template, dialect and sampling defaults."""

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
    name: str  # the model name that clients use
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
    """Return the defaults that `generation_config.json` recommends; `do_sample: false` means greedy."""
    values = {
        name: generation_config[name] for name in RECOMMENDED if generation_config.get(name) is not None
    }
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise CheckpointError(
            f"generation_config.json of the checkpoint has an invalid value: {error}. Correct or remove"
            f" {error.param} there."
        ) from error
