"""Fifty conversations have the same answers in every interface: `LLM`, and all APIs of the server.
Texts, reasoning, calls and their ids, token ids and logprobs are bit-identical."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conversations.all_ways import (
    ACHAT,
    ASTREAM_CHAT,
    CHAT,
    MESSAGES,
    RESPONSES,
    STREAMED_WITHOUT_IDS,
    ask_in_all_ways,
    differences,
)
from conversations.conversations import FIFTY, Conversation, Kind
from conversations.script import Script
from conversations.scripted_model import scripted_llm, scripted_url, with_script
from conversations.ways import Answer, Choice
from data.json_types import JsonObject
from full_size import FULL
from octavo import LLM
from server.process import Server

Assets = Callable[[str], Path]
QWEN_CODER = f"qwen2.5-coder-{'1.5b' if FULL else '0.5b'}-instruct-q4_k_m.gguf"
OPTIONS: JsonObject = {"dtype": "bfloat16", "kv_memory": "256MiB", "max_model_len": 1024}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
NUM_TOKENS = 48 if FULL else 16  # maximum for an answer of the real model
# Slow with a real model, and similar to others.
VARIANTS = () if FULL else (ACHAT, ASTREAM_CHAT, STREAMED_WITHOUT_IDS, MESSAGES, RESPONSES)


def test_there_are_fifty_conversations_of_all_kinds() -> None:
    assert len(FIFTY) == len({one.name for one in FIFTY}) == len({one.seed for one in FIFTY}) == 50
    kinds = Counter(kind for one in FIFTY for kind in one.kinds)
    assert all(kinds[kind] >= 4 for kind in Kind), kinds


@pytest.mark.assets
def test_every_interface_gives_the_same_answers_of_a_scripted_model(assets: Assets) -> None:
    folder = assets("tokenizer-qwen3")
    asked = [with_script(one) for one in FIFTY]
    with scripted_llm(folder) as llm, scripted_url(folder) as url:
        answers = asyncio.run(ask_in_all_ways(asked, llm, url))
    wrong = [
        (one.name, found)
        for one, answer in zip(FIFTY, answers[CHAT], strict=True)
        for script, choice in zip(one.scripts, answer.choices, strict=True)
        if (found := as_script(choice, script.raw)) != script
    ]
    assert not wrong
    assert_all_equal(asked, answers)


@pytest.mark.assets
def test_every_interface_gives_the_same_answers_of_a_real_model(assets: Assets, tmp_path: Path) -> None:
    """The model does not reason: it gets these conversations too, but answers without reasoning."""
    chosen = FIFTY if FULL else FIFTY[::2]
    asked = [replace(one, max_tokens=min(one.max_tokens, NUM_TOKENS)) for one in chosen]
    model = assets(QWEN_CODER)
    server = Server(tmp_path, model, *FLAGS)
    try:
        with LLM(str(model), progress=False, **OPTIONS) as llm:
            url = server.wait_until_ready().url
            answers = asyncio.run(ask_in_all_ways(asked, llm, url, leave_out=VARIANTS))
    finally:
        server.stop()
    choices = [choice for answer in answers[CHAT] for choice in answer.choices]
    assert sum(bool(choice.text) for choice in choices) > len(asked) * 2 / 5
    assert sum(bool(choice.calls) for choice in choices) > len(asked) / 5
    assert_all_equal(asked, answers)


def assert_all_equal(asked: Sequence[Conversation], answers: Mapping[str, Sequence[Answer]]) -> None:
    different = differences(asked, answers)
    assert not different, "\n".join(different)
    for answer in answers[CHAT]:
        ids = [call.id for choice in answer.choices for call in choice.calls]
        assert len(set(ids)) == len(ids), "call ids must be unique, because results refer to them"


def as_script(choice: Choice, raw: str) -> Script:
    calls = tuple((call.name, call.arguments) for call in choice.calls)
    return Script(raw, choice.text, choice.reasoning, calls, choice.finish_reason)
