"""Every request field, and a check that it has its effect: one table for all clients."""

from collections.abc import Callable
from dataclasses import dataclass, field

from data.json_types import Json, JsonObject

Fields = JsonObject
Answer = JsonObject  # the result of `whole` or `streamed`, or {"error": ...}
Effect = Callable[[Answer, Answer], bool]  # called with the answer and the answer without the field

CHAT, COMPLETIONS = "chat", "completions"
HELLO = [{"role": "user", "content": "hello"}]
BASE: dict[str, Fields] = {
    CHAT: {"model": "tiny", "messages": HELLO, "seed": 7, "temperature": 0, "max_completion_tokens": 12},
    COMPLETIONS: {"model": "tiny", "prompt": "hello", "seed": 7, "temperature": 0, "max_tokens": 12},
}
SAMPLED = {"temperature": 1.0}
FEW = {"logit_bias": {str(token): 100 for token in range(65, 75)}}  # so that they repeat often
ENDING = {"logit_bias": {"256": 100}}  # <|end|>, as soon as it is allowed


@dataclass(frozen=True)
class Case:
    name: str  # of the field
    change: Fields | Callable[[Answer], Fields]  # called with the answer to compare with
    has_effect: Effect
    beside: Fields = field(default_factory=dict)  # fields of both requests
    streams: bool = True  # false: the field is rejected in a stream


def same(answer: Answer, plain: Answer) -> bool:
    return bool(answer["texts"] == plain["texts"])


def differs(answer: Answer, plain: Answer) -> bool:
    return not same(answer, plain)


def rejected(param: str, status: int = 400) -> Effect:
    return lambda answer, _: answer["error"] == {"status": status, "param": param}


def begins(text: str) -> Effect:
    return lambda answer, _: answer["texts"][0].startswith(text)


def num_tokens(count: int) -> Effect:
    return lambda answer, _: answer["usage"][1] == count


def rendered(prompt: str) -> Effect:
    return lambda answer, _: answer["explained"]["prompt"] == prompt


def middle(plain: Answer) -> str:
    """Return a stop string that occurs in the answer."""
    return str(plain["texts"][0][3:5])


def before(plain: Answer) -> str:
    return str(plain["texts"][0].partition(middle(plain))[0])


YES = {"enum": ["yes"]}
SHOWN = {"octavo": {"prompt": True}}

BOTH = [
    Case("model", {"model": "another"}, rejected("model", 404)),
    Case("model", {"model": None}, same),
    Case("temperature", {"temperature": 1.5}, differs),
    Case("top_p", {"top_p": 1e-6} | SAMPLED, same),
    Case("top_p", {"top_p": 0.5}, differs, SAMPLED),
    Case("top_k", {"top_k": 1} | SAMPLED, same),
    Case("top_k", {"top_k": -1}, same, SAMPLED),
    Case("min_p", {"min_p": 1.0} | SAMPLED, same),
    Case("n", {"n": 3}, lambda a, p: a["texts"][:1] == p["texts"] and len(set(a["texts"])) == 3, SAMPLED),
    Case("seed", {"seed": 8}, differs, SAMPLED),
    Case("seed", {"seed": 8}, same),
    Case("presence_penalty", {"presence_penalty": 2.0}, differs, FEW),
    Case("frequency_penalty", {"frequency_penalty": 2.0}, differs, FEW),
    Case("repetition_penalty", {"repetition_penalty": 3.0}, differs),
    Case("logit_bias", {"logit_bias": {"65": 100}}, lambda a, _: a["texts"] == ["b" * 12]),
    Case(
        "stop",
        lambda plain: {"stop": middle(plain)},
        lambda a, p: a["texts"] == [before(p)] and a["finish"] == ["stop"],
    ),
    Case(
        "stop",  # more than OpenAI's four
        lambda plain: {"stop": ["never", "there", "at", "all", middle(plain)]},
        lambda a, p: a["texts"] == [before(p)],
    ),
    Case(
        "include_stop_str_in_output",
        lambda plain: {"stop": middle(plain), "include_stop_str_in_output": True},
        lambda a, p: a["texts"] == [before(p) + middle(p)],
    ),
    Case(
        "stop_token_ids",
        lambda plain: {"stop_token_ids": [plain["token_ids"][0][2]]},
        lambda a, p: a["token_ids"][0] == p["token_ids"][0][:3] and a["finish"] == ["stop"],
        {"return_token_ids": True},
    ),
    Case("ignore_eos", {"ignore_eos": True}, lambda a, p: (a["usage"][1], p["usage"][1]) == (12, 1), ENDING),
    Case("min_tokens", {"min_tokens": 4}, num_tokens(5), ENDING),
    Case(
        "skip_special_tokens",
        {"skip_special_tokens": False},
        lambda a, p: (a["texts"], p["texts"]) == (["<|end|>" * 12], [""]),
        ENDING | {"ignore_eos": True},
    ),
    Case(
        "prompt_logprobs",
        {"prompt_logprobs": 2},
        lambda a, _: a["prompt_logprobs"][0] is None and len(a["prompt_logprobs"]) == a["usage"][0],
        streams=False,
    ),
    Case(
        "return_token_ids",
        {"return_token_ids": True},
        lambda a, _: (len(a["prompt_token_ids"]), len(a["token_ids"][0])) == a["usage"],
    ),
    Case(
        "timings_per_token",
        {"timings_per_token": True},
        lambda a, p: a["timings"] == list(a["usage"]) and p["timings"] is None,
    ),
    Case("octavo", {"octavo": True}, lambda a, p: bool(a["explained"]) and not p["explained"]),
    Case("response_format", {"response_format": {"type": "text"}}, same),
    Case("response_format", {"response_format": {"type": "json_object"}}, begins("{")),
    Case("response_format", {"response_format": {"type": "json_schema", "schema": YES}}, begins('"yes"')),
    Case(
        "response_format",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": YES}}},
        begins('"yes"'),
    ),
    Case("response_format", {"response_format": {"type": "xml"}}, rejected("response_format.type")),
    Case("structured_outputs", {"structured_outputs": {"choice": ["yes"]}}, begins("yes")),
    Case("user", {"user": "me"}, same),
    Case("priority", {"priority": -3}, same),
    Case("timeout", {"timeout": 30}, same),
    Case("cache_salt", {"cache_salt": "s"}, same),
    Case("resume_from", {"resume_from": "an id"}, rejected("resume_from")),
    Case("an_unknown_field", {"an_unknown_field": [1, {"x": None}]}, same),
]

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SO = [*HELLO, {"role": "assistant", "content": "So"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

OF_CHAT = [
    Case("messages", {"messages": [{"role": "user", "content": "goodbye"}]}, differs),
    Case(
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("hel", "lo")]}]},
        same,
    ),
    Case(
        "messages",
        {
            "messages": [
                {"role": "developer", "content": "d"},
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u", "name": "n"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": "t", "tool_call_id": "1"},
                {"role": "assistant", "content": "a", "refusal": None, "reasoning_content": "r"},
            ]
        },
        rendered(
            "<|system|>d<|end|><|system|>s<|end|><|user|>u<|end|><|assistant|><|end|>"
            "<|tool|>t<|end|><|assistant|>a<|end|><|assistant|>"
        ),
        SHOWN,
    ),
    Case(
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        rejected("messages[0].content[0]"),
    ),
    Case("max_completion_tokens", {"max_completion_tokens": 3}, num_tokens(3)),
    Case("max_tokens", {"max_tokens": 3, "max_completion_tokens": None}, num_tokens(3)),
    Case("max_tokens", {"max_tokens": 3}, num_tokens(12)),
    Case(
        "logprobs", {"logprobs": True}, lambda a, p: len(a["logprobs"][0]) == 12 and p["logprobs"] == [None]
    ),
    Case(
        "top_logprobs",
        {"logprobs": True, "top_logprobs": 20},
        lambda a, _: {len(token["top_logprobs"]) for token in a["logprobs"][0]} == {20},
    ),
    Case("top_logprobs", {"top_logprobs": 0}, same, {"logprobs": True}),
    Case("top_logprobs", {"top_logprobs": 2}, rejected("top_logprobs")),
    Case("add_generation_prompt", {"add_generation_prompt": False}, rendered("<|user|>hello<|end|>"), SHOWN),
    Case(
        "continue_final_message",
        {"continue_final_message": True},
        rendered("<|user|>hello<|end|><|assistant|>So"),
        SHOWN | {"messages": SO},
    ),
    Case(
        "chat_template_kwargs",
        {"chat_template_kwargs": {"mood": "calm"}},
        rendered("calm<|user|>hello<|end|><|assistant|>"),
        SHOWN,
    ),
    Case(
        "reasoning_effort",
        {"reasoning_effort": "low"},
        rendered("low<|user|>hello<|end|><|assistant|>"),
        SHOWN,
    ),
    Case("prompt_cache_key", {"prompt_cache_key": "k"}, same),
    Case("tools", {"tools": [TOOL]}, differs),  # the template of this model describes them in text
    Case("tools", {"tools": [TOOL], "tool_choice": "required"}, begins("<tool_call>")),
    Case("tools", {"tools": [TOOL], "tool_choice": "none"}, same),
    Case("tools", {"tools": []}, same),
    Case("tool_choice", {"tool_choice": "required"}, rejected("tool_choice")),
    Case(
        "tool_choice",
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        rejected("tool_choice"),
    ),
    Case("tool_choice", {"tool_choice": "auto"}, same),
    Case("parallel_tool_calls", {"parallel_tool_calls": False}, same),
    Case("functions", {"functions": [{"name": "f"}]}, rejected("functions")),
    Case("function_call", {"function_call": "auto"}, rejected("function_call")),
    Case("modalities", {"modalities": ["text"]}, same),
    Case("modalities", {"modalities": ["text", "audio"]}, rejected("modalities")),
    Case("audio", {"audio": {"voice": "alloy", "format": "wav"}}, rejected("audio")),
    Case("web_search_options", {"web_search_options": {}}, rejected("web_search_options")),
    # The schema of the server does not list these.
    Case("safety_identifier", {"safety_identifier": "me"}, same),
    Case("metadata", {"metadata": {"a": "b"}}, same),
    Case("store", {"store": False}, same),
    Case("service_tier", {"service_tier": "auto"}, same),
    Case("verbosity", {"verbosity": "low"}, same),
    Case("prediction", {"prediction": {"type": "content", "content": "x"}}, same),
]

OF_COMPLETIONS = [
    Case("prompt", {"prompt": "goodbye"}, differs),
    Case("prompt", lambda plain: {"prompt": plain["prompt_token_ids"]}, same, {"return_token_ids": True}),
    Case(
        "prompt",
        {"prompt": ["hello", "abc"]},
        lambda a, p: a["texts"][:1] == p["texts"] and len(a["texts"]) == 2,
    ),
    Case(
        "prompt",
        lambda plain: {"prompt": [plain["prompt_token_ids"]] * 2},
        lambda a, p: a["texts"] == p["texts"] * 2,
        {"return_token_ids": True},
    ),
    Case("max_tokens", {"max_tokens": 3}, num_tokens(3)),
    Case("max_tokens", {"max_tokens": None}, num_tokens(16)),
    Case("echo", {"echo": True}, lambda a, p: a["texts"][0] == "hello" + p["texts"][0]),
    Case("logprobs", {"logprobs": 3}, lambda a, _: {len(top) for *_, top in a["logprobs"][0]} == {3}),
    Case("logprobs", {"echo": True, "logprobs": 0}, lambda a, _: len(a["logprobs"][0]) == 5 + 12),
    Case("add_special_tokens", {"add_special_tokens": False}, same),  # this tokenizer adds none
    Case("suffix", {"suffix": "x"}, rejected("suffix")),
    Case("best_of", {"best_of": 3}, rejected("best_of")),
    Case("best_of", {"best_of": 1}, same),
]

CASES = {CHAT: BOTH + OF_CHAT, COMPLETIONS: BOTH + OF_COMPLETIONS}


def whole(endpoint: str, body: Json) -> Answer:
    """Return the contents of an answer without ids, times and cache statistics."""
    choices = body["choices"]
    return _answer(
        endpoint,
        body["usage"],
        texts=[choice["message"]["content"] if endpoint == CHAT else choice["text"] for choice in choices],
        choices=choices,
        logprobs=[_logprobs(choice["logprobs"]) for choice in choices],
        body=body,
    )


def streamed(endpoint: str, chunks: list[Json]) -> Answer:
    """Return the same for a stream, assembled by choice index."""
    parts: dict[int, list[Json]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    texts, lasts, logprobs = [], [], []
    for index in sorted(parts):
        pieces = parts[index]
        texts.append(
            "".join((p["delta"].get("content") or "") if endpoint == CHAT else p["text"] for p in pieces)
        )
        scored = [_logprobs(piece["logprobs"]) for piece in pieces]
        logprobs.append(None if scored[0] is None else [entry for some in scored for entry in some or ()])
        last = dict(pieces[-1])
        if "token_ids" in last:
            last["token_ids"] = [token for piece in pieces for token in piece["token_ids"]]
            last["prompt_token_ids"] = pieces[0].get("prompt_token_ids")
        lasts.append(last)
    body = {name: chunks[-1].get(name) for name in ("octavo", "timings")}
    body |= {"prompt_token_ids": chunks[0].get("prompt_token_ids")}
    usage = chunks[-1]["usage"]
    return _answer(endpoint, usage, texts=texts, choices=lasts, logprobs=logprobs, body=body)


def _answer(
    endpoint: str, usage: Json, *, texts: list[str], choices: list[Json], logprobs: list[Json], body: Json
) -> Answer:
    explained = body.get("octavo")
    timings = body.get("timings")
    has_prompt = body if endpoint == CHAT else choices[0]
    return {
        "texts": texts,
        "finish": [choice["finish_reason"] for choice in choices],
        "logprobs": logprobs,
        "token_ids": [choice.get("token_ids") for choice in choices],
        "prompt_token_ids": has_prompt.get("prompt_token_ids"),
        "prompt_logprobs": has_prompt.get("prompt_logprobs"),
        "usage": (usage["prompt_tokens"], usage["completion_tokens"]),
        "timings": timings and [timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]],
        "explained": explained
        and {"prompt": explained["requests"][0].get("prompt"), "seed": explained["requests"][0]["seed"]},
    }


def _logprobs(shown: Json) -> list[Json] | None:
    """Return one entry per token, for either format of logprobs."""
    if shown is None:
        return None
    if "content" in shown:
        return list(shown["content"])
    names = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    return [list(entry) for entry in zip(*(shown[name] for name in names), strict=True)]
