"""What a checkpoint says about text, whatever file it came from."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextAssets:
    """Made by `octavo.checkpoint`, read by `Tokenizer` and `ChatTemplate`."""

    tokenizer_json: str  # the `tokenizers` library's own serialised form
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    eos_ids: tuple[int, ...] = ()  # every id that ends a turn: generation_config first, then the tokenizer's
    # None: the post-processor in tokenizer_json decides. True or False: these flags do, both of them.
    add_bos: bool | None = None
    add_eos: bool | None = None
    chat_template: str | None = None
    named_templates: dict[str, str] = field(default_factory=dict)  # e.g. "tool_use"
