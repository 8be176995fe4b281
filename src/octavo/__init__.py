"""Octavo: an LLM inference engine and OpenAI-compatible server with reproducible answers."""

from typing import TYPE_CHECKING, Any

from octavo.version import __version__

__all__ = [
    "LLM",
    "Choice",
    "GrammarKind",
    "GrammarSpec",
    "RequestOutput",
    "SamplingParams",
    "StreamDelta",
    "__version__",
]

if TYPE_CHECKING:
    from octavo.frontend.output import Choice, RequestOutput, StreamDelta
    from octavo.llm import LLM
    from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams

EXPORTS = {
    "LLM": "octavo.llm",
    "Choice": "octavo.frontend.output",
    "RequestOutput": "octavo.frontend.output",
    "StreamDelta": "octavo.frontend.output",
    "GrammarKind": "octavo.protocol",
    "GrammarSpec": "octavo.protocol",
    "SamplingParams": "octavo.protocol",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `import octavo` and `octavo --help` are fast."""
    from importlib import import_module

    if name not in EXPORTS:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)
