"""Transform logits into the distribution that tokens are drawn from. Pure functions on one row, [vocab].

The order of application, and the reasons:

1. repetition penalty: it depends on the sign of a logit, so it must be applied to the model's own logits;
2. presence and frequency penalties: they shift logits and could change the signs that step 1 uses;
3. logit bias: after the penalties, so that -100 and 100 ban and force a token regardless of penalties;
4. bans of stop tokens until min_tokens, and of tokens that the grammar forbids: guarantees of the API, which
   no bias may override;
5. temperature: before the filters, because top_p and min_p refer to the probabilities that are drawn from;
6. top_k, 7. top_p, 8. min_p: top_p uses the mass of the tokens that top_k kept; min_p compares with the best
   token, which steps 6 and 7 always keep.

`edit` applies steps 1 to 4, in float32. At temperature 0, its best token is the result; otherwise
`distribution` applies steps 5 to 8, in float64. Excluded tokens have -inf. Filters cut by value: every logit
that is at least as large as the cut is kept, so equal logits are kept or removed together and the result does
not depend on a sort order. All sums are sums of integers, so the result does not depend on the order of
addition or the number of threads either.
"""

import math

import torch

from octavo.protocol import SamplingParams

NEGATIVE_INFINITY = -math.inf

# The weights of up to 2**20 tokens, each at most 2**42, have a sum that fits in int64.
MASS_UNIT = 2.0**42

# Numbers of best tokens to try first: they nearly always suffice for top_p, and sorting the whole vocabulary
# takes 20 times as long.
TOP_P_HEADS = (256, 4096)


def edit(
    logits: torch.Tensor,
    params: SamplingParams,
    *,
    seen_ids: torch.Tensor,
    seen_counts: torch.Tensor,
    bias_ids: torch.Tensor,
    bias_values: torch.Tensor,
    banned_ids: torch.Tensor,
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply steps 1 to 4.

    `seen_counts`: how often each seen token was generated, 0 if it is in the prompt only. `allowed` contains
    the bits of a grammar's mask, see `keep_allowed`.
    """
    logits = penalize_repetition(logits, seen_ids, params.repetition_penalty)
    logits = penalize_presence_and_frequency(
        logits, seen_ids, seen_counts, params.presence_penalty, params.frequency_penalty
    )
    logits = add_bias(logits, bias_ids, bias_values)
    return keep_allowed(ban(logits, banned_ids), allowed)


def distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Apply steps 5 to 8. Return unnormalised float64 log-probabilities of the tokens that may be drawn."""
    scores = apply_temperature(logits, params.temperature)
    scores = keep_top_k(scores, params.top_k)
    scores = keep_top_p(scores, params.top_p)
    return keep_min_p(scores, params.min_p)


def penalize_repetition(logits: torch.Tensor, seen_ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """Divide positive logits of seen tokens (prompt and output) by the penalty; multiply negative ones."""
    if penalty == 1.0 or not len(seen_ids):
        return logits
    where = _places(seen_ids, logits)
    seen = logits[where]
    return logits.scatter(0, where, torch.where(seen < 0, seen * penalty, seen / penalty))


def penalize_presence_and_frequency(
    logits: torch.Tensor, seen_ids: torch.Tensor, counts: torch.Tensor, presence: float, frequency: float
) -> torch.Tensor:
    """Subtract frequency * count from tokens generated `count` times, and presence once if count > 0."""
    if (presence == 0.0 and frequency == 0.0) or not len(seen_ids):
        return logits
    where = _places(seen_ids, logits)
    counts = counts.to(logits)
    penalty = counts * frequency + (counts > 0).to(logits) * presence
    return logits.scatter(0, where, logits[where] - penalty)


def add_bias(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add `values` to the logits of `ids`, which are distinct."""
    if not len(ids):
        return logits
    where = _places(ids, logits)
    return logits.scatter(0, where, logits[where] + values.to(logits))


def ban(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    if not len(ids):
        return logits
    return logits.index_fill(0, _places(ids, logits), NEGATIVE_INFINITY)


def keep_allowed(logits: torch.Tensor, words: torch.Tensor | None) -> torch.Tensor:
    """Exclude token i if bit i % 32 of int32 word i / 32 is 0. None: keep all tokens."""
    if words is None:
        return logits
    if len(words) != -(-len(logits) // 32):
        raise ValueError(f"a mask of {len(words)} words does not match a vocabulary of {len(logits)}")
    bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
    forbidden = bits.flatten()[: len(logits)] == 0
    return logits.masked_fill(forbidden.to(logits.device), NEGATIVE_INFINITY)


def apply_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return float64 scores, shifted so that the best token has 0: temperatures above 0 then neither overflow
    nor yield NaN."""
    scores = logits.to(torch.float64)
    return (scores - scores.max()) / temperature


def keep_top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Keep the k best tokens, and tokens equal to the last of them. 0 disables the filter."""
    if top_k <= 0 or top_k >= len(scores):
        return scores
    return _cut_below(scores, torch.topk(scores, top_k).values[-1])


def keep_top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest best tokens whose mass reaches top_p (at least one), and those equal to the last."""
    if top_p >= 1.0:
        return scores
    alive = scores[scores > NEGATIVE_INFINITY]
    peak = alive.max()
    needed = max(1, math.ceil(top_p * int(_mass(alive, peak).sum())))
    for width in (*TOP_P_HEADS, len(alive)):
        best = torch.topk(alive, min(width, len(alive))).values
        mass = _mass(best, peak)
        mass_with = mass.cumsum(0)
        if mass_with[-1] >= needed:
            break
    kept = int((mass_with - mass < needed).sum())
    return _cut_below(scores, best[kept - 1])


def keep_min_p(scores: torch.Tensor, min_p: float) -> torch.Tensor:
    """Keep tokens that are at least min_p times as probable as the best one. 0 disables the filter."""
    if min_p <= 0.0:
        return scores
    return _cut_below(scores, scores.max() + math.log(min_p))


def _mass(scores: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """Return probabilities relative to the best token's, in integer units of 1 / MASS_UNIT."""
    return (torch.exp(scores - peak) * MASS_UNIT).round().to(torch.int64)


def _cut_below(scores: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores < cut, NEGATIVE_INFINITY)


def _places(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return ids (on the CPU) as an index on the logits' device."""
    # Checked here because a bad index on a GPU kills the whole process, not only this row.
    lowest, highest = torch.aminmax(ids)
    if lowest < 0 or highest >= len(logits):
        raise IndexError(f"a token id is outside the vocabulary of {len(logits)} tokens")
    return ids.to(logits.device)
