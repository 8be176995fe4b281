"""Every public call of `LLM` accepts prompts, messages, parameters and tools in any iterable without loss."""

import array
import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import LLM, RequestOutput, SamplingParams, StreamDelta
from octavo.errors import RequestError
from octavo.frontend.batches import PromptInput
from octavo.frontend.chat import Message
from octavo.frontend.tool_use import Tool

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
TEXTS = st.text("abc XYZ.", min_size=1, max_size=12)
IDS = st.lists(st.integers(0, 255), min_size=1, max_size=12)


Element = TypeVar("Element")


class Wrap(Protocol):
    def __call__(self, items: list[Element], /) -> Iterable[Element]: ...


class Map(Protocol):
    def __call__(self, items: dict[str, Element], /) -> Mapping[str, Element]: ...


def as_objects(items: list[Element]) -> Iterable[Element]:
    """Return an array of objects: numpy's constructor would make a 2-D array of lists of equal length."""
    made = numpy.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        made[index] = item
    return made


# Iterables of the same elements. A generator can be read only once.
WRAPPERS: dict[str, Wrap] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "generator": lambda items: (item for item in items),
    "iterator": iter,
    "values of a dict": lambda items: dict(enumerate(items)).values(),
    "array of objects": as_objects,
}
ARRAYS: dict[str, Callable[[list[int]], Iterable[int]]] = {
    "numpy": numpy.array,
    "numpy, 16 bits": lambda ids: numpy.array(ids, dtype=numpy.uint16),
    "torch": torch.tensor,
    "array": lambda ids: array.array("l", ids),
    "numbers of numpy": lambda ids: [numpy.int64(token_id) for token_id in ids],  # type: ignore[misc]
    "range": lambda ids: range(ids[0], ids[0] + 3),
}
MAPPINGS: dict[str, Map] = {
    "dict": dict,
    "proxy": MappingProxyType,
}

a_wrapper = st.sampled_from(sorted(WRAPPERS)).map(WRAPPERS.__getitem__)
an_array = st.sampled_from(sorted(ARRAYS)).map(ARRAYS.__getitem__)
a_mapping = st.sampled_from(sorted(MAPPINGS)).map(MAPPINGS.__getitem__)
slow_is_fine = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def written_prompts(draw: st.DrawFn) -> tuple[str | list[int], PromptInput]:
    """Draw a prompt in its plain form, and the same prompt in another form."""
    wrap, mapping = draw(a_wrapper), draw(a_mapping)
    if draw(st.booleans()):
        text = draw(TEXTS)
        forms: tuple[PromptInput, ...] = (text, mapping({"prompt": text}))
        return text, draw(st.sampled_from(forms))
    ids = draw(IDS)
    form = draw(an_array)
    ids = list(form(ids)) if isinstance(form(ids), range) else ids
    written = draw(st.sampled_from((wrap(list(ids)), form(ids))))
    key = draw(st.sampled_from((None, "prompt", "prompt_token_ids")))
    return ids, written if key is None else mapping({key: written})


@st.composite
def written_conversations(draw: st.DrawFn) -> tuple[list[Message], Iterable[Message]]:
    texts = draw(st.lists(TEXTS, min_size=1, max_size=3))
    plain = [{"role": "user", "content": text} for text in texts]
    mapping, wrap = draw(a_mapping), draw(a_wrapper)
    return list(plain), wrap([mapping(message) for message in plain])


def content(outputs: Iterable[RequestOutput]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(output.prompt_ids, output.token_ids) for output in outputs]


# -- every call that takes one prompt or one conversation, as: input -> sampled tokens -----------------------


def drawn(deltas: Iterable[StreamDelta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)


def awaited(output: Awaitable[RequestOutput]) -> tuple[int, ...]:
    async def wait() -> RequestOutput:
        return await output

    return asyncio.run(wait()).token_ids


def collected(deltas: AsyncIterator[StreamDelta]) -> tuple[int, ...]:
    async def collect() -> list[StreamDelta]:
        return [delta async for delta in deltas]

    return drawn(asyncio.run(collect()))


def stepped(llm: LLM, prompt: PromptInput) -> tuple[int, ...]:
    name = llm.add_request(prompt, GREEDY)
    while llm.has_unfinished:
        for output in llm.step().finished:
            if output.request_id == name:
                return output.token_ids
    raise AssertionError("the request was lost")


ONE_PROMPT: dict[str, Callable[[LLM, PromptInput], tuple[int, ...]]] = {
    "generate": lambda llm, prompt: llm.generate(prompt, GREEDY)[0].token_ids,
    "agenerate": lambda llm, prompt: awaited(llm.agenerate(prompt, GREEDY)),
    "stream": lambda llm, prompt: drawn(llm.stream(prompt, GREEDY)),
    "astream": lambda llm, prompt: collected(llm.astream(prompt, GREEDY)),
    "add_request": stepped,
}
ONE_CONVERSATION: dict[str, Callable[[LLM, Iterable[Message]], tuple[int, ...]]] = {
    "chat": lambda llm, messages: llm.chat(messages, GREEDY)[0].token_ids,
    "achat": lambda llm, messages: awaited(llm.achat(messages, GREEDY)),
    "stream_chat": lambda llm, messages: drawn(llm.stream_chat(messages, GREEDY)),
    "astream_chat": lambda llm, messages: collected(llm.astream_chat(messages, GREEDY)),
}


def test_every_public_call_is_covered() -> None:
    takes = {
        name
        for name, call in inspect.getmembers(LLM, inspect.isfunction)
        if not name.startswith("_")
        and {"prompt", "prompts", "messages"} & inspect.signature(call).parameters.keys()
    }
    assert takes == ONE_PROMPT.keys() | ONE_CONVERSATION.keys()


@pytest.mark.parametrize("call", ONE_PROMPT)
@given(written=written_prompts())
@slow_is_fine
def test_every_form_of_a_prompt_is_equivalent(
    tiny_llm: LLM, call: str, written: tuple[str | list[int], PromptInput]
) -> None:
    plain, other = written
    expected = tiny_llm.generate([plain], GREEDY)[0].token_ids
    assert ONE_PROMPT[call](tiny_llm, other) == expected


@pytest.mark.parametrize("call", ONE_CONVERSATION)
@given(written=written_conversations())
@slow_is_fine
def test_every_form_of_a_conversation_is_equivalent(
    tiny_llm: LLM, call: str, written: tuple[list[Message], Iterable[Message]]
) -> None:
    plain, other = written
    expected = tiny_llm.chat([plain], GREEDY)[0].token_ids
    assert ONE_CONVERSATION[call](tiny_llm, other) == expected


@given(st.lists(written_prompts(), min_size=1, max_size=4), a_wrapper, a_wrapper)
@slow_is_fine
def test_results_of_many_prompts_are_complete_and_in_order(
    tiny_llm: LLM,
    written: list[tuple[str | list[int], PromptInput]],
    wrap: Callable[[list[object]], Iterable[PromptInput]],
    wrap_params: Callable[[list[object]], Iterable[SamplingParams]],
) -> None:
    each = [
        SamplingParams(temperature=0, max_tokens=1 + index, ignore_eos=True) for index in range(len(written))
    ]
    expected = [tiny_llm.generate([plain], one)[0] for (plain, _), one in zip(written, each, strict=True)]
    found = tiny_llm.generate(wrap([other for _, other in written]), wrap_params(list(each)))
    assert content(found) == content(expected)


@given(st.lists(written_conversations(), min_size=1, max_size=4), a_wrapper)
@slow_is_fine
def test_results_of_many_conversations_are_complete_and_in_order(
    tiny_llm: LLM,
    written: list[tuple[list[Message], Iterable[Message]]],
    wrap: Callable[[list[object]], Iterable[Iterable[Message]]],
) -> None:
    expected = [tiny_llm.chat(plain, GREEDY)[0] for plain, _ in written]
    found = tiny_llm.chat(wrap([other for _, other in written]), GREEDY)
    assert content(found) == content(expected)


@pytest.mark.parametrize("make", [numpy.array, torch.tensor])
def test_rows_of_a_two_dimensional_array_are_prompts(
    tiny_llm: LLM, make: Callable[[list[list[int]]], Iterable[list[int]]]
) -> None:
    rows = [[70, 71, 72], [80, 81, 82]]
    assert content(tiny_llm.generate(make(rows), GREEDY)) == content(tiny_llm.generate(rows, GREEDY))


def test_tools_in_a_generator_reach_every_conversation(tiny_llm: LLM) -> None:
    def tools() -> Iterator[Tool]:
        yield {"type": "function", "function": {"name": "now"}}

    conversation = [{"role": "user", "content": "hi"}]
    (alone,) = tiny_llm.chat([conversation], GREEDY, tools=list(tools()))
    assert '"name": "now"' in (alone.prompt or "")
    several = tiny_llm.chat([conversation, conversation], GREEDY, tools=tools())
    assert [output.prompt for output in several] == [alone.prompt] * 2
    deltas = list(tiny_llm.stream_chat(conversation, GREEDY, tools=tools()))
    assert [token for delta in deltas for token in delta.token_ids] == list(alone.token_ids)


def test_tool_choice_none_is_the_default(tiny_llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (plain,) = tiny_llm.chat(conversation, GREEDY)
    (given,) = tiny_llm.chat(conversation, GREEDY, tool_choice=None, parallel_tool_calls=None)
    assert given.token_ids == plain.token_ids
    with pytest.raises(RequestError, match="tool_choice must be"):
        tiny_llm.chat(conversation, GREEDY, tool_choice={"type": "function"})  # type: ignore[arg-type]


def test_no_prompts_give_no_results(tiny_llm: LLM) -> None:
    assert tiny_llm.generate([], GREEDY) == tiny_llm.generate(iter(()), GREEDY) == tiny_llm.chat([]) == []


NOT_A_PROMPT: list[object] = [
    {},
    {"text": "a"},
    {"prompt": "a", "prompt_token_ids": [1]},
    {"prompt": "a", "multi_modal_data": None},
    {"prompt": {"prompt": "a"}},
    {"prompt_token_ids": "a"},
    {"prompt": None},
    b"bytes",
    bytearray(b"bytes"),
    memoryview(b"bytes"),
    {1, 2},
    frozenset("ab"),
    None,
    3,
    2.5,
    numpy.array(3),
    numpy.array([0.5, 1.5]),
    torch.tensor([True, False]),
    [1, "a"],
    ["a", 1],
    [[1, 2], 3],
    [1, None],
]


@pytest.mark.parametrize("prompt", NOT_A_PROMPT)
@pytest.mark.parametrize("call", ONE_PROMPT)
def test_invalid_prompts_are_rejected(tiny_llm: LLM, call: str, prompt: PromptInput) -> None:
    with pytest.raises(RequestError) as caught:
        ONE_PROMPT[call](tiny_llm, prompt)
    assert caught.value.param == "prompt"
    assert not tiny_llm.has_unfinished


@pytest.mark.parametrize("prompts", [["a", "b"], [[1], [2]], numpy.array([[1, 2], [3, 4]])])
@pytest.mark.parametrize("call", sorted(ONE_PROMPT.keys() - {"generate"}))
def test_single_prompt_calls_reject_several_prompts(tiny_llm: LLM, call: str, prompts: PromptInput) -> None:
    with pytest.raises(RequestError, match="only `generate` accepts a list of prompts"):
        ONE_PROMPT[call](tiny_llm, prompts)


@pytest.mark.parametrize(
    "messages", ["hi", {"role": "user", "content": "hi"}, [{"role": "user"}, "hi"], ["hi"], None, 3]
)
@pytest.mark.parametrize("call", ONE_CONVERSATION)
def test_invalid_conversations_are_rejected(tiny_llm: LLM, call: str, messages: Iterable[Message]) -> None:
    with pytest.raises(RequestError) as caught:
        ONE_CONVERSATION[call](tiny_llm, messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("params", [{"temperature": 0}, "greedy", 3, [None, 3], {GREEDY.max_tokens}])
def test_invalid_params_are_rejected(tiny_llm: LLM, params: SamplingParams) -> None:
    calls: list[Callable[[], object]] = [
        lambda: tiny_llm.generate(["a", "b"], params),
        lambda: tiny_llm.stream("a", params),
        lambda: tiny_llm.chat([[{"role": "user", "content": "a"}]] * 2, params),
        lambda: tiny_llm.stream_chat([{"role": "user", "content": "a"}], params),
    ]
    for call in calls:
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.param == "params"


def test_generators_and_dictionaries_lose_no_prompts(tiny_llm: LLM) -> None:
    def prompts() -> Iterator[str]:
        return (f"{i} is" for i in range(3))

    assert [output.prompt for output in tiny_llm.generate(prompts(), GREEDY)] == list(prompts())
    (only,) = tiny_llm.generate({"prompt": "the capital"}, GREEDY)
    assert only.prompt == "the capital"
