"""What a request must answer, from the request alone. Knows no pages, batches, slots or time."""

from dataclasses import dataclass

from octavo.protocol import FinishReason, GenerateRequest, TokenLogprob
from octavo.simulate.fake_model import Hints, draw_token, empty_context, kv_row, logprob_of


@dataclass(frozen=True)
class Answer:
    """Unless it is aborted or its deadline passes, a request gives all of this, then `finish`."""

    tokens: tuple[int, ...]  # resumed ones included
    logprobs: tuple[float, ...]  # one per token
    scores: tuple[TokenLogprob, ...]  # of the prompt's tokens from the second on, if asked for
    finish: FinishReason


def expected_answer(request: GenerateRequest, vocab: int, max_model_len: int) -> Answer:
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
    most = min(params.max_tokens, max_model_len - len(prompt))
    healthy = {0: most, 1: 0}.get(hints.poison, hints.poison - 2)
    finish = FinishReason.LENGTH if healthy >= most else FinishReason.ERROR
    while len(tokens) < min(most, healthy):
        position = len(prompt) + len(tokens)
        token = draw_token(
            context,
            seed=params.seed,
            choice=request.choice,
            position=position,
            tally=sum(tokens),
            vocab=vocab,
        )
        tokens.append(token)
        logprobs.append(logprob_of(context, token))
        if token in request.stop_ids and len(tokens) >= params.min_tokens:
            finish = FinishReason.STOP
            break
        context += kv_row(context, token, position)
    return Answer(tuple(tokens), tuple(logprobs), tuple(scores), finish)
