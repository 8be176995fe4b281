"""A model whose answers are given in the prompt; everything except its arithmetic is real.

The answers are in the last message that is not the assistant's, one per choice, each between two special
tokens. The script is therefore part of the request in every interface.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conversations.conversations import Conversation
from data.engine_facts import engine_facts
from octavo import LLM
from octavo.cache import KVManager
from octavo.checkpoint import Checkpoint
from octavo.engine.core import EngineCore
from octavo.frontend.hub import Hub
from octavo.frontend.in_process import InProcessChannel
from octavo.plan import SequenceSlice, SliceResult, SlotOpening, StepPlan, StepResult
from octavo.protocol import Abort, GenerateRequest, TokenLogprob
from octavo.schedule import Scheduler, SchedulerConfig
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from server.recording import take_problems
from server.scripted import served_tokenizer, serving

BEGIN, END = "<|object_ref_start|>", "<|object_ref_end|>"

BLOCK_SIZE, NUM_BLOCKS = 16, 400
MAX_MODEL_LEN = 4096
FACTS = engine_facts(
    vocab_size=1 << 20,
    max_model_len=MAX_MODEL_LEN,
    block_size=BLOCK_SIZE,
    num_blocks=NUM_BLOCKS,
    system_fingerprint="scripted",
)


def with_script(conversation: Conversation) -> Conversation:
    """Return the conversation with its script in the last message."""
    script_text = "".join(f"{BEGIN}{script.raw}{END}" for script in conversation.scripts)
    messages = list(conversation.messages)
    last = max(i for i, message in enumerate(messages) if message["role"] != "assistant")
    messages[last] = messages[last] | {"content": messages[last]["content"] + script_text}
    return replace(conversation, messages=tuple(messages))


@dataclass(frozen=True)
class Answering:
    """The answer of a slot."""

    token_ids: tuple[int, ...]
    num_prompt: int
    num_top: int | None

    def after(self, position: int) -> SliceResult:
        """Return the token at this position of the sequence."""
        token_id = self.token_ids[position - self.num_prompt]
        if self.num_top is None:
            return SliceResult((token_id,))
        best = _logprob(token_id, position)
        top = [(token_id + 7 * rank, best - rank / 3) for rank in range(self.num_top)]
        return SliceResult((token_id,), (TokenLogprob(token_id, best, tuple(top)),))


def _logprob(token_id: int, position: int) -> float:
    """Return an arbitrary number with many digits."""
    return -((token_id * 31 + position * 17) % 9973) / 997


class ScriptedModel:
    """Executes the plans of one scheduler."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        begin, end = tokenizer.token_id(BEGIN), tokenizer.token_id(END)
        assert begin is not None
        assert end is not None
        self._begin, self._end = begin, end
        self._slots: dict[int, Answering] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.closed:
            del self._slots[slot]
        for opening in plan.opened:
            self._slots[opening.slot] = self._answering(opening)
        return StepResult(tuple([self._result(piece) for piece in plan.slices]))

    def _answering(self, opening: SlotOpening) -> Answering:
        prompt = opening.token_ids[: opening.num_prompt]
        begins = [i for i, token_id in enumerate(prompt) if token_id == self._begin]
        begin = begins[opening.choice] + 1
        answer = prompt[begin : prompt.index(self._end, begin)]
        return Answering((*answer, opening.stop_ids[0]), opening.num_prompt, opening.params.logprobs)

    def _result(self, piece: SequenceSlice) -> SliceResult:
        if not piece.num_sampled:
            return SliceResult()
        return self._slots[piece.slot].after(piece.start + len(piece.token_ids))


def scripted_core(tokenizer: Tokenizer) -> EngineCore:
    """Return an engine that computes prompts in chunks and cannot run all sequences at once."""
    config = SchedulerConfig(max_running=16, max_model_len=MAX_MODEL_LEN, max_step_tokens=128)
    scheduler = Scheduler(config, KVManager(NUM_BLOCKS, BLOCK_SIZE))
    return EngineCore(scheduler, ScriptedModel(tokenizer).execute, time.monotonic)


@contextmanager
def scripted_llm(path: Path) -> Iterator[LLM]:
    """Yield an `LLM` with the tokenizer and the template of this folder."""
    assets = text_assets_from_directory(path)

    def open_scripted(*_: object, **__: object) -> Checkpoint:
        return Checkpoint(
            name="scripted",
            path=path,
            revision=None,
            format="safetensors",
            config={},
            generation_config={},
            store=None,  # type: ignore[arg-type]
            read_text=lambda: assets,
        )

    def start_scripted(*_: object, **__: object) -> InProcessChannel:
        return InProcessChannel(scripted_core(Tokenizer(assets)), FACTS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.llm.open_checkpoint", open_scripted)
        patch.setattr(InProcessChannel, "start", start_scripted)
        llm = LLM("scripted")
    with llm:
        yield llm
        llm.check()


class SteppedChannel(InProcessChannel):
    """A channel whose engine runs steps on the event loop of the sender while requests are unfinished."""

    def __init__(self, core: EngineCore, hub: Hub) -> None:
        super().__init__(core, FACTS)
        self._hub = hub
        self._is_stepping = False

    def send(self, message: GenerateRequest | Abort) -> None:
        super().send(message)
        if not self._is_stepping:
            self._is_stepping = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        self._hub.receive("r0", self.step())
        self._is_stepping = self.has_unfinished
        if self._is_stepping:
            asyncio.get_running_loop().call_soon(self._advance)


@contextmanager
def scripted_url(path: Path) -> Iterator[str]:
    """Run a server with the tokenizer and the template of this folder, and yield its URL."""
    model = served_tokenizer(path)
    hub = Hub()
    channel = SteppedChannel(scripted_core(model.tokenizer), hub)
    hub.connect("r0", channel)
    take_problems()
    with serving(model, hub, FACTS) as port:
        yield f"http://127.0.0.1:{port}"
    channel.check()
    problems = take_problems()
    assert not problems, "\n".join(problems)
