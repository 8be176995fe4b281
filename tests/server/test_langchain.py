"""LangChain's ChatOpenAI: invoke, stream and batch, with usage and logprobs."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from data.json_types import Json
from server.process import Server

if TYPE_CHECKING:
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_openai import ChatOpenAI

HumanMessage = pytest.importorskip("langchain_core.messages").HumanMessage
langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

pytestmark = pytest.mark.xdist_group("server")


class MakeModel(Protocol):
    def __call__(self, **keywords: Json) -> "ChatOpenAI": ...


@pytest.fixture
def model(server: Server) -> MakeModel:
    def make(**keywords: Json) -> "ChatOpenAI":
        made: ChatOpenAI = langchain_openai.ChatOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            model="tiny",
            seed=7,
            max_tokens=12,
            max_retries=0,
            **keywords,
        )
        return made

    return make


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all models, because LangChain shares one connection pool between them."""
    with asyncio.Runner() as made:
        yield made


def test_invoke_stream_and_their_async_forms_agree(model: MakeModel, runner: asyncio.Runner) -> None:
    llm = model(stream_usage=True)

    async def at_once() -> "tuple[AIMessage, list[AIMessageChunk]]":
        return await llm.ainvoke("hello"), [chunk async for chunk in llm.astream("hello")]

    whole = llm.invoke("hello")
    other, pieces = runner.run(at_once())
    chunks = list(llm.stream("hello"))
    texts = [
        whole.content,
        other.content,
        *("".join(str(c.content) for c in some) for some in (chunks, pieces)),
    ]
    assert len(set(texts)) == 1
    assert whole.content
    assert len(chunks) > 6
    assert whole.response_metadata["finish_reason"] == "length"
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined = joined + chunk
    for message in (whole, other, joined):
        counted = message.usage_metadata
        assert counted is not None
        assert (counted["input_tokens"], counted["output_tokens"], counted["total_tokens"]) == (8, 12, 20)
        assert counted["input_token_details"]["cache_read"] >= 0


def test_batch_and_abatch(model: MakeModel, runner: asyncio.Runner) -> None:
    prompts: list[LanguageModelInput] = [f"hello {number}" for number in range(6)]
    alone = [model().invoke(prompt).content for prompt in prompts]
    assert [message.content for message in model().batch(prompts)] == alone
    assert [message.content for message in runner.run(model().abatch(prompts))] == alone
    assert len(set(alone)) > 3


def test_logprobs(model: MakeModel) -> None:
    llm = model(logprobs=True, top_logprobs=2)
    scores = llm.invoke("hello").response_metadata["logprobs"]["content"]
    assert len(scores) == 12
    assert {len(score["top_logprobs"]) for score in scores} == {2}
    streamed = [
        score
        for chunk in llm.stream("hello")
        for score in (chunk.response_metadata.get("logprobs") or {}).get("content", ())
    ]
    assert streamed == scores


def test_parameters_and_conversations(model: MakeModel) -> None:
    history = [("system", "Be brief."), ("human", "hello"), ("ai", "So"), ("human", "again")]
    plain = str(model(temperature=0).invoke(history).content)
    assert model(temperature=0, extra_body={"top_k": 1}).invoke(history).content == plain
    assert model(temperature=1.0, top_p=1e-6).invoke(history).content == plain
    stop = plain[2:4]
    assert model(temperature=0).invoke(history, stop=[stop]).content == plain.partition(stop)[0]
    (choices,) = model(n=2).generate([[HumanMessage("hello")]]).generations
    assert len({choice.text for choice in choices}) == 2
