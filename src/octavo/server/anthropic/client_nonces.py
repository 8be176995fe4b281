"""Lines in system prompts that change with every request and say nothing to the model.

Claude Code begins its system prompt with a block of its own for billing, such as

    x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;

`cch` is a digest of the request, so no two prompts would share a prefix and nothing would be cached.
Anthropic's servers do not show it to the model. This server drops it too, before the prompt is built, and
reports it in a response header.
"""

import re

# The whole text of the first block: the name, then only fields `name=value;`, the version first. A text with
# anything else, such as a sentence after the fields, is kept.
BILLING_HEADER = re.compile(
    r"x-anthropic-billing-header: cc_version=[^;\s]+;(?: [a-z_]+=[^;\s]*;)*\s?", re.ASCII
)
MAX_CHARS = 512  # far above the length of such a line
HEADER = "octavo-dropped-system-blocks"


def is_nonce(text: str) -> bool:
    """Whether the text is such a line and nothing else."""
    return len(text) <= MAX_CHARS and BILLING_HEADER.fullmatch(text) is not None


def dropped_header(num_dropped: int) -> dict[str, str]:
    return {HEADER: str(num_dropped)} if num_dropped else {}
