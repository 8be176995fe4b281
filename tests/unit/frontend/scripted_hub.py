"""Shared by tests of in-flight requests: a tokenizer, requests, and outputs of an engine."""

import msgspec

from data.engine_facts import FACTS, IDLE_STATS
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput
from octavo.frontend.updates import Update
from octavo.protocol import (
    Abort,
    EngineOutputs,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    TokenOutput,
)
from octavo.text.assets import TextAssets
from octavo.text.tokenizer import Tokenizer

PROMPT = (3, 1, 4, 1, 5)
NOW = Timings(0.0, 0.0, 0.0)
LETTER = 66


def byte_assets() -> TextAssets:
    """Every byte is a token."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    backend.decoder = decoders.ByteLevel()
    return TextAssets(backend.to_str())


def byte_tokenizer() -> Tokenizer:
    return Tokenizer(byte_assets())


class Inbox:
    """A recipient that keeps all updates."""

    def __init__(self) -> None:
        self.updates: list[Update | Exception] = []
        self.is_full = False

    def put(self, update: Update | Exception) -> None:
        self.updates.append(update)

    @property
    def result(self) -> RequestOutput | None:
        """Return the result, which must be the last update."""
        results = [update for update in self.updates if isinstance(update, RequestOutput)]
        assert not results or results == self.updates[-1:]
        return results[0] if results else None


class ScriptedChannel:
    """Keeps the messages it is sent; the test plays the engine."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.sent: list[GenerateRequest | Abort] = []
        self._next: dict[tuple[str, int], tuple[int, int]] = {}  # attempt and position of each choice

    def send(self, message: GenerateRequest | Abort) -> None:
        self.sent.append(message)
        if isinstance(message, GenerateRequest):
            self._next[message.request_id, message.choice] = message.attempt, len(message.resume_ids)

    def take(self) -> list[GenerateRequest | Abort]:
        sent, self.sent = self.sent, []
        return sent

    def step(self, *outputs: TokenOutput) -> EngineOutputs:
        """Return the outputs with the attempts and positions of the requests that were sent here."""
        return EngineOutputs(tuple(map(self._numbered, outputs)), IDLE_STATS)

    def _numbered(self, output: TokenOutput) -> TokenOutput:
        attempt, position = self._next.get((output.request_id, output.choice), (0, 0))
        following = position + len(output.token_ids) + len(output.prompt_logprobs)
        self._next[output.request_id, output.choice] = attempt, following
        return msgspec.structs.replace(output, attempt=attempt, position=position)


def request(
    tokenizer: Tokenizer,
    name: str,
    inbox: Inbox | None = None,
    *,
    tenant: Tenant = ONLY_TENANT,
    rank: int = 0,
    priority: int = 0,
    **params: object,
) -> InFlightRequest:
    definite = msgspec.structs.replace(SamplingParams(max_tokens=9, seed=0), **params)
    intake = Intake(tokenizer, RequestLimits(256, 64))
    prepared = intake.prepare(
        name, PromptTask(PROMPT, definite), now=0.0, tenant=tenant, rank=rank, priority=priority
    )
    return InFlightRequest(prepared, tokenizer, inbox or Inbox())


def token(
    request_id: str, finish: FinishReason | None = None, choice: int = 0, token_id: int = LETTER
) -> TokenOutput:
    return TokenOutput(
        request_id=request_id,
        choice=choice,
        token_ids=(token_id,),
        finish=finish,
        timings=NOW if finish else None,
        num_cached=4,
    )


def ended(request_id: str, finish: FinishReason, choice: int = 0) -> TokenOutput:
    return TokenOutput(request_id=request_id, choice=choice, finish=finish, timings=NOW)


def connected(hub: Hub, *names: str) -> dict[str, ScriptedChannel]:
    channels = {name: ScriptedChannel() for name in names}
    for name, channel in channels.items():
        hub.connect(name, channel)
    return channels


def asked(channel: ScriptedChannel) -> list[str]:
    return [one.request_id for one in channel.take() if isinstance(one, GenerateRequest)]
