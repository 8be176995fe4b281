"""Requests of many kinds. The same number gives the same request, and therefore the same answer."""

from data.json_types import Json, JsonObject

Body = JsonObject

KINDS: tuple[Body, ...] = (
    {"temperature": 0},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 1.3, "logprobs": 0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.2, "logprobs": 1},
    {"temperature": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"70": 3}},
)


def completion(number: int, tokens: int, **more: Json) -> Body:
    """Return a request for exactly this number of tokens."""
    prompt = f"Number {number} is a story" + " of many words" * (number % 5)
    fixed = {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": number,
        "return_token_ids": True,
    }
    return fixed | KINDS[number % len(KINDS)] | more


def chat(number: int, tokens: int, **more: Json) -> Body:
    body = completion(number, tokens, **more)
    body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if "logprobs" in body:
        body |= {"top_logprobs": body["logprobs"], "logprobs": True}
    return body
