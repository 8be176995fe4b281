"""A checkpoint as far as text goes: how it writes, and how it is written to."""

from dataclasses import dataclass
from typing import Self

from octavo.checkpoint import Checkpoint
from octavo.dialect.choose import Dialect, dialect_of
from octavo.frontend.defaults import default_params
from octavo.protocol import SamplingParams
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer


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
