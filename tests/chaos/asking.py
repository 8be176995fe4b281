"""Requests of every kind, sent through a hub, and what must be the same whatever happens to the engines."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput
from octavo.frontend.updates import Updates
from octavo.protocol import EngineFacts, GrammarKind, GrammarSpec, SamplingParams, TokenLogprob
from octavo.text.tokenizer import Tokenizer

WORDS = GrammarSpec(GrammarKind.REGEX, "(and (that|this) [a-z]{1,9}[,;] )*")  # some of its tokens are forced

ChoiceOutcome = tuple[
    str, tuple[int, ...], tuple[TokenLogprob, ...] | None, str, str | int | None, str | None
]
Outcome = tuple[tuple[TokenLogprob, ...] | None, list[ChoiceOutcome]]
Request = tuple[str, SamplingParams]


class Asker:
    """Sends requests to the engines behind a hub."""

    def __init__(
        self, hub: Hub, tokenizer: Tokenizer, facts: Callable[[], EngineFacts | None], name: str = "r"
    ) -> None:
        """`name` is the beginning of its request ids, which must differ from those of others."""
        self.hub = hub
        self._name = name
        self.num_deltas = 0
        self.max_pause = 0.0  # seconds between two updates of one request
        self.updated_at: dict[str, float] = {}  # when unfinished requests had their last update
        self._tokenizer = tokenizer
        self._facts = facts
        self._count = 0

    async def ask(
        self, prompt: str | list[int], params: SamplingParams, timeout: float | None = None
    ) -> RequestOutput:
        """Return the result and check that it agrees with the stream."""
        facts = self._facts()
        assert facts is not None
        intake = Intake(self._tokenizer, RequestLimits(facts.vocab_size, facts.max_model_len))
        self._count += 1
        request_id, now = f"{self._name}{self._count}", time.monotonic()
        prepared = intake.prepare(request_id, PromptTask(prompt, params), now=now, name="r", timeout=timeout)
        self.updated_at[request_id] = now
        texts = [""] * params.n
        updates = Updates()
        self.hub.submit(InFlightRequest(prepared, self._tokenizer, updates))
        async for update in updates:
            now = time.monotonic()
            self.max_pause = max(self.max_pause, now - self.updated_at[request_id])
            self.updated_at[request_id] = now
            if isinstance(update, RequestOutput):
                del self.updated_at[request_id]
                assert [choice.text for choice in update.choices] == texts
                return update
            texts[update.choice] += update.text
            self.num_deltas += 1
        raise AssertionError("the stream ended without a result")

    async def ask_all(self, requests: list[Request]) -> list[Outcome]:
        results = await asyncio.gather(*(self.ask(prompt, params) for prompt, params in requests))
        return [outcome(result) for result in results]


def requests_of_every_kind(count: int, num_tokens: int) -> list[Request]:
    """Return greedy and sampled requests, with logprobs, penalties, two choices, stop strings, a grammar."""
    endless = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    kinds = [
        replaced(endless, temperature=0, logprobs=2),
        replaced(endless, temperature=1.3, logprobs=0, seed=1),
        replaced(endless, temperature=0.8, n=2, seed=2, top_p=0.9),
        replaced(endless, temperature=2.0, stop=("ab", "Zx"), seed=3, prompt_logprobs=1),
        SamplingParams(max_tokens=num_tokens, n=2, seed=4, grammar=WORDS),
        replaced(endless, seed=5, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2),
        replaced(endless, seed=6, top_k=20, min_p=0.01, logprobs=1, n=3),
    ]
    return [(f"Number {number} is a story", kinds[number % len(kinds)]) for number in range(count)]


def replaced(params: SamplingParams, **changes: object) -> SamplingParams:
    return msgspec.structs.replace(params, **changes)


def outcome(result: RequestOutput) -> Outcome:
    """Return everything that must be reproducible."""
    return result.prompt_logprobs, [
        (c.text, c.token_ids, c.logprobs, c.finish_reason, c.stop_reason, c.error) for c in result.choices
    ]
