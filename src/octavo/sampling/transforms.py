"""From the model's logits to the tokens that may be drawn. Pure functions on one row, [vocab].

The order of application, and why:

1. repetition penalty: it scales by the sign of a logit, so it must see the model's own logits;
2. presence and frequency penalties: they shift, and would move the sign that 1 looks at;
3. logit bias: after the penalties, so that -100 and 100 ban and force whatever the penalties did;
4. ban of stop tokens until min_tokens, and of all that the grammar forbids: promises of the API, so no bias
   may undo them;
5. temperature: before the filters, since top_p and min_p speak of the probabilities that will be drawn from;
6. top_k, 7. top_p, 8. min_p: top_p counts the mass of what top_k left; min_p compares with the best token,
   which 6 and 7 always keep.

`edit` does 1 to 4, in float32. At temperature 0 its best token is the answer; else `distribution` does 5 to
8, in float64. Tokens that are out have -inf. Filters cut by value: every logit at least as large as the cut
stays, so equal logits stay together and no sort order decides. Every sum here is a sum of integers, so no
order of addition decides either, and the number of threads does not matter.
"""

import math

import torch

from octavo.protocol import SamplingParams

NEGATIVE_INFINITY = -math.inf

# Weights of up to 2**20 tokens, each at most 2**42, add up in int64.
MASS_UNIT = 2.0**42

# A few best tokens nearly always settle top_p; sorting a whole vocabulary costs 20 times as much.
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
    """Steps 1 to 4. `seen_counts`: how often each seen token was generated, 0 if it is in the prompt only.

    `allowed` has the bits of a grammar's mask, see `keep_allowed`.
    """
    logits = penalize_repetition(logits, seen_ids, params.repetition_penalty)
    logits = penalize_presence_and_frequency(
        logits, seen_ids, seen_counts, params.presence_penalty, params.frequency_penalty
    )
    logits = add_bias(logits, bias_ids, bias_values)
    return keep_allowed(ban(logits, banned_ids), allowed)


def distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Steps 5 to 8: unnormalised log-probabilities of the tokens that may be drawn, float64."""
    scores = apply_temperature(logits, params.temperature)
    scores = keep_top_k(scores, params.top_k)
    scores = keep_top_p(scores, params.top_p)
    return keep_min_p(scores, params.min_p)


def penalize_repetition(logits: torch.Tensor, seen_ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """Tokens of prompt or output: a positive logit is divided by the penalty, a negative one multiplied."""
    if penalty == 1.0 or not len(seen_ids):
        return logits
    where = _places(seen_ids, logits)
    seen = logits[where]
    return logits.scatter(0, where, torch.where(seen < 0, seen * penalty, seen / penalty))


def penalize_presence_and_frequency(
    logits: torch.Tensor, seen_ids: torch.Tensor, counts: torch.Tensor, presence: float, frequency: float
) -> torch.Tensor:
    """Tokens generated `count` times: minus frequency * count, and minus presence once."""
    if (presence == 0.0 and frequency == 0.0) or not len(seen_ids):
        return logits
    where = _places(seen_ids, logits)
    counts = counts.to(logits)
    penalty = counts * frequency + (counts > 0).to(logits) * presence
    return logits.scatter(0, where, logits[where] - penalty)


def add_bias(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`ids` are distinct."""
    if not len(ids):
        return logits
    where = _places(ids, logits)
    return logits.scatter(0, where, logits[where] + values.to(logits))


def ban(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    if not len(ids):
        return logits
    return logits.index_fill(0, _places(ids, logits), NEGATIVE_INFINITY)


def keep_allowed(logits: torch.Tensor, words: torch.Tensor | None) -> torch.Tensor:
    """Bit i % 32 of int32 word i / 32 says that token i may be drawn. None: every token may."""
    if words is None:
        return logits
    if len(words) != -(-len(logits) // 32):
        raise ValueError(f"{len(words)} words of a mask for a vocabulary of {len(logits)}")
    bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
    forbidden = bits.flatten()[: len(logits)] == 0
    return logits.masked_fill(forbidden.to(logits.device), NEGATIVE_INFINITY)


def apply_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Float64, shifted so that the best token has 0: then no temperature above 0 overflows or makes a NaN."""
    scores = logits.to(torch.float64)
    return (scores - scores.max()) / temperature


def keep_top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """The k best tokens, and those equal to the last of them. 0 is off."""
    if top_k <= 0 or top_k >= len(scores):
        return scores
    return _cut_below(scores, torch.topk(scores, top_k).values[-1])


def keep_top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The fewest best tokens whose mass reaches top_p, and those equal to the last of them; never none."""
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
    """Tokens at least min_p times as probable as the best one. 0 is off."""
    if min_p <= 0.0:
        return scores
    return _cut_below(scores, scores.max() + math.log(min_p))


def _mass(scores: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """Probability in proportion to the best token's, in whole units of 1 / MASS_UNIT."""
    return (torch.exp(scores - peak) * MASS_UNIT).round().to(torch.int64)


def _cut_below(scores: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores < cut, NEGATIVE_INFINITY)


def _places(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Ids (on the CPU) as an index on the logits' device."""
    # Checked here, since a bad index on a GPU takes the whole process down, not this row alone.
    lowest, highest = torch.aminmax(ids)
    if lowest < 0 or highest >= len(logits):
        raise IndexError(f"a token id is outside the vocabulary of {len(logits)}")
    return ids.to(logits.device)
