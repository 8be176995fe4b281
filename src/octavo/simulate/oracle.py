"""Compute the expected answer from the request alone, without blocks, batches, slots or time."""

from dataclasses import dataclass

from octavo.protocol import FinishReason, GenerateRequest, TokenLogprob
from octavo.simulate.fake_model import (
    FIRST_MASK,
    Hints,
    draw_token,
    empty_context,
    kv_row,
    logprob_of,
    next_mask,
)


@dataclass(frozen=True)
class ExpectedAnswer:
    """The complete output of a request that is not aborted and does not reach its deadline."""

    tokens: tuple[int, ...]  # including resumed tokens
    logprobs: tuple[float, ...]  # one per token
    scores: tuple[TokenLogprob, ...]  # of the prompt's tokens from the second on, if requested
    finish: FinishReason


def expected_answer(request: GenerateRequest, vocab: int, max_model_len: int) -> ExpectedAnswer:
    params = request.params
    assert params.seed is not None
    assert params.max_tokens is not None
    hints = Hints.from_seed(params.seed)
    prompt = request.prompt_ids
    context = empty_context(hints.salt)
    scores: list[TokenLogprob] = []
    for position, token in enumerate(prompt):
        context += kv_row(context, token, position)
        if params.prompt_logprobs is not None and position + 1 < len(prompt):
            scored = prompt[position + 1]
            scores.append(TokenLogprob(scored, logprob_of(context, scored)))

    tokens: list[int] = []
    logprobs: list[float] = []
    mask = FIRST_MASK
    limit = min(params.max_tokens, max_model_len - len(prompt))
    healthy = {0: limit, 1: 0}.get(hints.poison, hints.poison - 2)
    finish = FinishReason.LENGTH if healthy >= limit else FinishReason.ERROR
    while len(tokens) < min(limit, healthy):
        position = len(prompt) + len(tokens)
        token = draw_token(
            context,
            seed=params.seed,
            choice=request.choice,
            position=position,
            tally=sum(tokens),
            mask=mask,
            vocab=vocab,
        )
        tokens.append(token)
        logprobs.append(logprob_of(context, token))
        if token in request.stop_ids and len(tokens) >= params.min_tokens:
            finish = FinishReason.STOP
            break
        context += kv_row(context, token, position)
        mask = next_mask(mask, token)
    return ExpectedAnswer(tuple(tokens), tuple(logprobs), tuple(scores), finish)
