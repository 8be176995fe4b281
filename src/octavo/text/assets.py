"""The tokenizer and chat templates of a checkpoint, independent of the file format."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextAssets:
    """Created by `octavo.checkpoint`; used by `Tokenizer` and `ChatTemplate`."""

    tokenizer_json: str  # in the serialisation format of the `tokenizers` library
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    eos_ids: tuple[int, ...] = ()  # every id that ends a turn: generation_config first, then tokenizer
    # None in both: the post-processor in tokenizer_json decides. Otherwise these two flags decide.
    add_bos: bool | None = None
    add_eos: bool | None = None
    chat_template: str | None = None
    named_templates: dict[str, str] = field(default_factory=dict)  # e.g. "tool_use"
