"""Log-probabilities under the model: float32 log-softmax of its raw logits, before penalties and filters.

Rows are reduced one at a time, so that the result of a row cannot depend on the number of rows.
"""

import torch

from octavo.protocol import LOGPROB_FLOOR, TokenLogprob


def token_logprob(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """Return the logprob of one token and of the `top` best tokens. `logits` is one row with a finite maximum
    and without NaN."""
    logprobs = torch.log_softmax(logits, dim=0)
    best = best_ids(logits, top)
    values: list[float] = (
        logprobs[torch.tensor([token_id, *best], device=logits.device)].clamp(LOGPROB_FLOOR).tolist()
    )
    return TokenLogprob(token_id, values[0], tuple(zip(best, values[1:], strict=True)))


def best_ids(logits: torch.Tensor, count: int) -> list[int]:
    """Return the ids of the largest logits, best first. Equal logits are ordered by id, which `topk` does not
    guarantee.

    The order is that of the logits: logprobs have more ties because of rounding. The first id is therefore
    the greedy token.
    """
    count = min(count, len(logits))
    if count <= 0:
        return []
    cut = torch.topk(logits, count).values[-1]
    candidates = torch.nonzero(logits >= cut).squeeze(1)
    order = torch.sort(logits[candidates], descending=True, stable=True).indices[:count]
    ids: list[int] = candidates[order].tolist()
    return ids
