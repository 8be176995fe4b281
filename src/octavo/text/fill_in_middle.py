"""Prompts for text between a given prefix and suffix, for models trained to fill in the middle.

The special tokens of such a model are in its vocabulary. The prompt consists of ids, because text that looks
like a special token must not mark a part of it.
"""

from dataclasses import dataclass
from typing import Self

from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Markers:
    """The special tokens of one family of models."""

    prefix: str
    suffix: str
    middle: str
    stops: tuple[str, ...]  # end the middle, besides the markers themselves
    # The tokenizer adds a space before a text. One before the suffix would be a part of the answer's line.
    adds_space: bool = False


FAMILIES = (
    Markers(  # Qwen2.5-Coder and Qwen3-Coder; CodeGemma, whose separator has another name
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>"),
    ),
    Markers(  # StarCoder, Granite
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<|endoftext|>"),
    ),
    Markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>", "<|endoftext|>")),  # SantaCoder
    Markers(
        "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>",)
    ),  # DeepSeek-Coder
    Markers("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), adds_space=True),  # CodeLlama
    Markers("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", ("<|endoftext|>",)),  # GLM-4.5
)

NO_FILL_IN_MIDDLE = (
    "suffix is not supported with this model: its vocabulary has no tokens to fill in the middle"
)
BEFORE = "☺"  # any character: see `FillInMiddle._suffix_ids`


@dataclass(frozen=True)
class FillInMiddle:
    """How a model is asked for the text between two others."""

    prefix_id: int
    suffix_id: int
    middle_id: int
    stop_ids: tuple[int, ...]  # end the middle
    adds_space: bool = False

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> Self | None:
        """Return None if the vocabulary has no such tokens."""
        for family in FAMILIES:
            prefix, suffix, middle = map(tokenizer.token_id, (family.prefix, family.suffix, family.middle))
            if prefix is not None and suffix is not None and middle is not None:
                ends = [
                    token_id for token in family.stops if (token_id := tokenizer.token_id(token)) is not None
                ]
                return cls(prefix, suffix, middle, (prefix, suffix, middle, *ends), family.adds_space)
        return None

    def prompt_ids(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, add_special_tokens: bool
    ) -> list[int]:
        """Return the prompt for the text between a prefix and a suffix."""
        first = tokenizer.encode("")[:1] if add_special_tokens else []
        return [
            *(first if first == [tokenizer.bos_id] else ()),
            self.prefix_id,
            *tokenizer.encode(prefix, add_special_tokens=False),
            self.suffix_id,
            *self._suffix_ids(tokenizer, suffix),
            self.middle_id,
        ]

    def _suffix_ids(self, tokenizer: Tokenizer, suffix: str) -> list[int]:
        if not self.adds_space:
            return tokenizer.encode(suffix, add_special_tokens=False)
        before, both = tokenizer.encode_batch([BEFORE, BEFORE + suffix], add_special_tokens=False)
        return both[len(before) :]
