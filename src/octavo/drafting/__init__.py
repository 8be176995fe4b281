"""Drafting for speculative decoding: guesses at the next tokens of a sequence, from text that exists."""

from octavo.drafting.guarded import GuardedSpeculation
from octavo.drafting.ngram import NgramSpeculation
from octavo.drafting.proposer import Proposer, Speculation
from octavo.drafting.suffix import SuffixSpeculation

__all__ = ["Proposer", "Speculation", "speculation_for"]


def speculation_for(method: str) -> Speculation | None:
    """Return the method of that name: `ngram`, `suffix`, or none for `off`."""
    match method:
        case "off":
            return None
        case "ngram":
            return GuardedSpeculation(NgramSpeculation())
        case "suffix":
            return GuardedSpeculation(SuffixSpeculation())
    raise ValueError(f"unknown method of speculation: {method!r}")
