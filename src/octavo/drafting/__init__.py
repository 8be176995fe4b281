"""Drafting for speculative decoding: guesses at the next tokens of a sequence, from text that exists."""

from octavo.drafting.guarded import GuardedSpeculation
from octavo.drafting.ngram import NgramSpeculation
from octavo.drafting.proposer import Proposer, Speculation
from octavo.drafting.suffix import SuffixSpeculation

__all__ = ["Proposer", "Speculation", "speculation_for"]


def speculation_for(method: str, *, has_exact_rows: bool) -> Speculation | None:
    """Return what looks up drafts in text with `--speculate METHOD`; None: nothing is drafted.

    `has_exact_rows`: the numbers of a row do not depend on other rows of a step. Otherwise `auto` drafts
    nothing.
    """
    match method.partition(":")[0]:
        case "off":
            return None
        case "auto" if not has_exact_rows:
            return None
        case "ngram":
            return GuardedSpeculation(NgramSpeculation())
        case "suffix" | "auto" | "draft":
            return GuardedSpeculation(SuffixSpeculation())
    raise ValueError(f"unknown method of speculation: {method!r}")
