"""All interfaces, and the differences between their answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import fields

import httpx

from conversations.conversations import Conversation
from conversations.other_apis import (
    AskMessages,
    AskResponses,
    Client,
    first_choice,
    with_parsed_calls,
)
from conversations.ways import Answer, Ask, AskLLM, AskServer, Choice
from octavo import LLM
from patience import HANG_SECONDS

CHAT, ACHAT, ASTREAM_CHAT = "LLM.chat", "LLM.achat", "LLM.astream_chat"
STREAMED_WITHOUT_IDS = "the server, streamed without ids"
MESSAGES, STREAMED_MESSAGES = "messages, whole", "messages, streamed"
RESPONSES, STREAMED_RESPONSES = "responses, whole", "responses, streamed"
OTHER_APIS = (MESSAGES, STREAMED_MESSAGES, RESPONSES, STREAMED_RESPONSES)


@asynccontextmanager
async def _ways(llm: LLM, url: str, limit: int) -> AsyncIterator[dict[str, Ask]]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, limits=limits) as client:
        with ThreadPoolExecutor(limit) as threads:
            of_llm, of_server = AskLLM(llm, threads), AskServer(client)
            of_messages = AskMessages(Client(client, llm.tokenizer))
            of_responses = AskResponses(Client(client, llm.tokenizer))
            yield {
                CHAT: of_llm.chat,
                "LLM.stream_chat": of_llm.stream_chat,
                ACHAT: of_llm.achat,
                ASTREAM_CHAT: of_llm.astream_chat,
                "the server, whole": of_server.whole,
                "the server, streamed": of_server.streamed,
                STREAMED_WITHOUT_IDS: of_server.streamed_without_ids,
                MESSAGES: of_messages.whole,
                STREAMED_MESSAGES: of_messages.streamed,
                RESPONSES: of_responses.whole,
                STREAMED_RESPONSES: of_responses.streamed,
            }


async def ask_in_all_ways(
    conversations: Sequence[Conversation], llm: LLM, url: str, *, leave_out: Sequence[str] = ()
) -> dict[str, list[Answer]]:
    """Use one interface after the other, each with all conversations concurrently."""
    async with _ways(llm, url, len(conversations)) as ways:
        return {
            name: list(await asyncio.gather(*[ask(conversation) for conversation in conversations]))
            for name, ask in ways.items()
            if name not in leave_out
        }


def differences(conversations: Sequence[Conversation], answers: Mapping[str, Sequence[Answer]]) -> list[str]:
    """List differences of each interface from the first one, which returns everything."""
    first, *others = answers
    found = []
    for way in others:
        for one, complete, answer in zip(conversations, answers[first], answers[way], strict=True):
            expected = first_choice(one, complete) if way in OTHER_APIS else complete
            if way == MESSAGES:
                expected = with_parsed_calls(expected)
            found += [f"{one.name!r}, {way}: {what}" for what in _differences(answer, expected)]
    return found


def _differences(found: Answer, expected: Answer) -> list[str]:
    """Compare the repr of values, which distinguishes 0.0 from -0.0."""
    lines = []
    if found.prompt_ids is not None and found.prompt_ids != expected.prompt_ids:
        lines.append(f"prompt_ids {found.prompt_ids} instead of {expected.prompt_ids}")
    if len(found.choices) != len(expected.choices):
        return [*lines, f"{len(found.choices)} choices instead of {len(expected.choices)}"]
    for number, (ours, theirs) in enumerate(zip(found.choices, expected.choices, strict=True)):
        for name in [one.name for one in fields(Choice)]:
            value, wanted = getattr(ours, name), getattr(theirs, name)
            is_reported = value is not None or name == "reasoning"
            if is_reported and repr(value) != repr(wanted):
                lines.append(f"choice {number}, {name} {value!r} instead of {wanted!r}")
    return lines
