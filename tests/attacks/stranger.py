"""A hostile checkpoint, whose tokenizer and chat template misbehave for certain texts."""

import json
import shutil
from pathlib import Path

GROWTH = 4096  # factor for each ~, and for each ` that replaces it
BACKTRACKING = "(?:x+x+)+w"  # with 40 x, the library panics after its backtracking limit
SLOW = "v*v*v*(?<=w)"  # N**4 steps for N times v, always below the limit of the library

PANICS = "x" * 40
LOOPS = ("v" * 300 + " ") * 20  # takes minutes
EXPANDS = "~" * 100  # expands to gigabytes

TEMPLATE = (
    "{% set said = messages[0].content %}"
    "{% if said == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% elif said == 'grow' %}{% set n = namespace(x='ab') %}"
    "{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
    "{% elif said == 'escape' %}{{ ''.__class__.__mro__ }}"
    "{% elif said == 'recurse' %}{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    "{% elif said == 'raise' %}{{ raise_exception('not so') }}"
    "{% elif said == 'forget' %}{{ messages[7].content.nothing }}"
    "{% else %}{{ said }}{% endif %}"
)
TEMPLATE_WORDS = ("loop", "grow", "escape", "recurse", "raise", "forget")


def write_stranger(checkpoint: Path, folder: Path) -> None:
    shutil.copytree(checkpoint, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    growing = [
        {"type": "Replace", "pattern": {"String": short}, "content": long * GROWTH}
        for short, long in (("~", "`"), ("`", "y"))
    ]
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": growing}
    split = {
        "type": "Split",
        "pattern": {"Regex": f"{BACKTRACKING}|{SLOW}"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split, tokenizer["pre_tokenizer"]],
    }
    path.write_text(json.dumps(tokenizer))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
