"""Rules by which byte-level tokenizers split text before merging, under their names in GGUF files."""

from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError

# The published patterns of the model families. They differ in how they group letters, digits and line breaks.
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
    pattern: str | None = None  # None: GPT-2's, which is built into the library
    single_digits: bool = False
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a piece that is itself a token is not split, regardless of the merges
    adds_bos: bool = False  # if the file does not specify it

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


# Names that converters write for models of the supported architectures. Add a name together with a test.
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
            f"The GGUF file splits text by the unknown rule {name!r}; supported rules are "
            f"{', '.join(sorted(_RULES))}. Pass the directory of the original tokenizer with `tokenizer`."
        )
    return rule
