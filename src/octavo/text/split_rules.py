"""How byte-level tokenizers cut text before merging, by the name GGUF gives the rule."""

from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError

# The published patterns of the model families. They differ in how letters, digits and line breaks group.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}"
)


@dataclass(frozen=True)
class SplitRule:
    pattern: str | None = None  # None: GPT-2's, which the library has built in
    single_digits: bool = False
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a piece that is a token as a whole is taken so, whatever the merges say
    adds_bos: bool = False  # where the file does not say

    def pre_tokenizer(self, *, prefix_space: bool) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        if self.single_digits:
            parts.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            split = {
                "type": "Split",
                "pattern": {"Regex": self.pattern},
                "behavior": "Isolated",
                "invert": False,
            }
            parts.append(split)
        to_bytes = {
            "type": "ByteLevel",
            "add_prefix_space": prefix_space,
            "trim_offsets": True,
            "use_regex": self.pattern is None,
        }
        return {"type": "Sequence", "pretokenizers": [*parts, to_bytes]}


# What converters write for models of the supported architectures. A name belongs here once a test tries it.
_RULES = {
    "gpt-2": SplitRule(),
    "llama-bpe": SplitRule(_LLAMA3, ignore_merges=True, adds_bos=True),
    "qwen2": SplitRule(_QWEN2, normalizer={"type": "NFC"}),
    "smollm": SplitRule(single_digits=True),
    "tekken": SplitRule(_TEKKEN, ignore_merges=True, adds_bos=True),
}


def split_rule(name: str) -> SplitRule:
    rule = _RULES.get(name)
    if rule is None:
        raise CheckpointError(
            f"The GGUF file cuts text by the rule {name!r}, which is not known; known are "
            f"{', '.join(sorted(_RULES))}. Give the original tokenizer's directory with `tokenizer`."
        )
    return rule
