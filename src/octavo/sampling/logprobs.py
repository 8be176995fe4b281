"""Log-probabilities under the model itself: float32 log-softmax of its raw logits, before any edit.

One row at a time: then a row's reduction cannot depend on how many rows there are.
"""

import torch

from octavo.protocol import LOGPROB_FLOOR, TokenLogprob


def token_logprob(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """Of one token, with the `top` best alternatives. `logits` is one row: a finite maximum and no NaN."""
    logprobs = torch.log_softmax(logits, dim=0)
    best = best_ids(logits, top)
    values: list[float] = (
        logprobs[torch.tensor([token_id, *best], device=logits.device)].clamp(LOGPROB_FLOOR).tolist()
    )
    return TokenLogprob(token_id, values[0], tuple(zip(best, values[1:], strict=True)))


def best_ids(logits: torch.Tensor, count: int) -> list[int]:
    """The ids of the largest logits, best first; equal logits by id, which `topk` does not promise.

    Ordered by logits and not by logprobs, where rounding makes new ties: so the first is the greedy token.
    """
    count = min(count, len(logits))
    if count <= 0:
        return []
    cut = torch.topk(logits, count).values[-1]
    candidates = torch.nonzero(logits >= cut).squeeze(1)
    order = torch.sort(logits[candidates], descending=True, stable=True).indices[:count]
    ids: list[int] = candidates[order].tolist()
    return ids
