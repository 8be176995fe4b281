"""The workload of a simulation: all events, drawn from one seed.

Draws are biased towards difficult cases: tiny vocabularies, lengths at block boundaries, block pools barely
larger than one request, and prompts that repeat and continue each other.
"""

import random
from dataclasses import dataclass, replace

import msgspec

from octavo.protocol import Abort, GenerateRequest, SamplingParams
from octavo.schedule import UNLIMITED, AdmissionPolicy, DraftPolicy, SchedulerConfig
from octavo.simulate.fake_model import Hints
from octavo.simulate.oracle import expected_answer


@dataclass(frozen=True)
class SimulationSettings:
    """One simulation: the engine's configuration, and how its clients behave."""

    block_size: int
    num_blocks: int
    prefix_caching: bool
    scheduler: SchedulerConfig
    vocab: int
    num_salts: int
    num_priorities: int
    tenant_weights: tuple[float, ...]
    flood_rate: float  # fraction of requests that the first tenant sends
    priority_is_rank: bool  # whether priorities also order the tenants
    arrival_steps: int  # no requests arrive after these
    arrival_rate: float  # requests per step
    burst: int  # requests that arrive in the first step
    abort_rate: float
    restart_rate: float
    lost_step_rate: float
    late_rate: float  # fraction of tokens whose grammar mask is late
    max_prompt_tokens: int
    max_tokens: int
    speculates: bool = False

    @property
    def capacity(self) -> int:
        return self.block_size * self.num_blocks


def draw_settings(rng: random.Random, *, crowded: bool, thrashing: bool) -> SimulationSettings:
    """Draw the settings. A crowded simulation starts with hundreds of waiting requests."""
    max_model_len = rng.randint(6, 40)
    block_size = rng.choice((1, 2, 2, 3, 3, 4, 4, 8, max_model_len))
    # Mostly too few blocks; sometimes enough, so that slots are what tenants compete for.
    requests_that_fit = rng.uniform(0.8, 3.0) if rng.random() < 0.7 else rng.uniform(4.0, 10.0)
    num_blocks = max(1, round(max_model_len * requests_that_fit / block_size))
    settings = SimulationSettings(
        block_size=block_size,
        num_blocks=num_blocks,
        prefix_caching=rng.random() < 0.88,
        scheduler=SchedulerConfig(
            max_running=rng.choice((1, 2, 3, 4, 4, 6, 8)),
            max_model_len=max_model_len,
            # At least 2: a single token that is reserved for a decode without a block would stop all others.
            max_step_tokens=rng.choice(
                (2, 5, 8, 12, max(2, block_size), 2 * block_size, block_size + 3, 25, UNLIMITED)
            ),
            admission=AdmissionPolicy.STATIC if rng.random() < 0.12 else AdmissionPolicy.CONTINUOUS,
        ),
        vocab=rng.randint(2, 5),
        num_salts=rng.choice((1, 1, 2, 3)),
        num_priorities=rng.choice((1, 2, 2, 3)),
        tenant_weights=rng.choice(
            ((1.0,), (1.0, 1.0), (1.0, 2.0), (1.0, 0.25, 1.0), (1.0, 0.25, 0.25, 1.0), (1.0,) * 5)
        ),
        flood_rate=rng.choice((0.3, 0.6, 0.9)),
        priority_is_rank=rng.random() < 0.25,
        arrival_steps=rng.randint(100, 600),
        arrival_rate=rng.choice((0.1, 0.2, 0.4, 0.9)),
        burst=rng.randint(260, 400) if crowded else rng.randint(0, 6),
        abort_rate=rng.choice((0.0, 0.01, 0.05)),
        restart_rate=rng.choice((0.0, 0.0, 0.004)),
        lost_step_rate=rng.choice((0.0, 0.0, 0.01)),
        late_rate=rng.choice((0.0, 0.0, 0.05, 0.3)),
        max_prompt_tokens=max_model_len * rng.randint(1, 5) // 5 - 1,
        max_tokens=3 if crowded else rng.randint(4, 30),
    )
    speculates = rng.random() < 2 / 3
    scheduler = replace(
        settings.scheduler,
        max_draft_tokens=rng.randint(1, 5),
        draft_policy=rng.choice((DraftPolicy.ALL, DraftPolicy.WORTH)),
        draft_context=_draft_context(rng, max_model_len) if speculates else 0,
    )
    settings = replace(settings, scheduler=scheduler, speculates=speculates)
    return _thrashing(rng, settings) if thrashing else settings


def _thrashing(rng: random.Random, settings: SimulationSettings) -> SimulationSettings:
    """Return the settings with long answers in few blocks: chunks of answers are computed again."""
    max_model_len = rng.randint(16, 40)
    block_size = rng.choice((1, 2, 2, 3))
    return replace(
        settings,
        block_size=block_size,
        num_blocks=round(max_model_len * rng.uniform(1.0, 2.0) / block_size),
        max_prompt_tokens=max_model_len // 6,
        max_tokens=30,
        arrival_rate=0.9,
        speculates=True,
        scheduler=replace(
            settings.scheduler,
            draft_policy=DraftPolicy.ALL,
            max_model_len=max_model_len,
            draft_context=_draft_context(rng, max_model_len),
            max_running=rng.choice((3, 4, 6, 8)),
            max_step_tokens=rng.choice((4, 5, 8, 10)),
            admission=AdmissionPolicy.CONTINUOUS,
        ),
    )


def _draft_context(rng: random.Random, max_model_len: int) -> int:
    """Draw 0 for half of the simulations, and otherwise sometimes fewer tokens than the large model sees."""
    return rng.choice((0, 0, max_model_len, max(2, max_model_len // 2)))


class SimulatedWorkload:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.settings = draw_settings(self._rng, crowded=seed % 32 == 5, thrashing=seed % 4 == 2)
        self._serial = 0
        self._past: list[tuple[int, ...]] = []  # prompts with their answers
        self._last_prompt: tuple[int, ...] = ()
        longest = self.settings.scheduler.max_model_len
        self._stems = [self._random_tokens(longest) for _ in range(3)]

    def arrivals(self, step: int, num_live: int) -> int:
        """Return how many requests arrive before this step.

        An idle simulation gets at least one, because empty steps test nothing.
        """
        settings = self.settings
        if step >= settings.arrival_steps:
            return 0
        if step == 0 and settings.burst:
            return settings.burst
        if num_live > 3 * settings.scheduler.max_running:
            return 0  # the queue is long enough
        return 1 if num_live == 0 or self._rng.random() < settings.arrival_rate else 0

    def wants_restart(self) -> bool:
        return self._rng.random() < self.settings.restart_rate

    def wants_duplicate(self) -> bool:
        return self._rng.random() < 0.02

    def wants_abort(self) -> bool:
        return self._rng.random() < self.settings.abort_rate

    def loses_step(self) -> bool:
        return self._rng.random() < self.settings.lost_step_rate

    def sees_lost_step(self) -> bool:
        """Return whether the workers had started the plan when the step was lost."""
        return self._rng.random() < 0.5

    def aborts(self, live: list[str], ended: str) -> list[Abort]:
        """Return aborts: mostly of live requests, sometimes of ended or unknown ones, sometimes twice."""
        rng = self._rng
        chance = rng.random()
        if live and chance < 0.75:
            request_id = rng.choice(live)
        else:
            request_id = ended if chance < 0.9 else "unknown"
        return [Abort(request_id, rng.choice((None, None, 0, 1)))] * rng.choice((1, 1, 1, 2))

    def request(self, now: float) -> list[GenerateRequest]:
        """Draw one request; return a struct per choice."""
        rng, settings = self._rng, self.settings
        self._serial += 1
        salt = rng.randrange(settings.num_salts)
        prompt = self._last_prompt = self._prompt()
        poison = rng.choice((1, 2, 2, 3, 5)) if rng.random() < 0.06 else 0
        params = SamplingParams(
            seed=Hints(self._serial, salt, poison).to_seed(),
            max_tokens=rng.randint(1, settings.max_tokens),
            min_tokens=rng.choice((0, 0, 0, 2, 5)),
            logprobs=0 if rng.random() < 0.7 else None,
            prompt_logprobs=0 if rng.random() < 0.12 else None,
        )
        tenant, priority = self._tenant(), rng.randrange(settings.num_priorities)
        first = GenerateRequest(
            request_id=f"r{self._serial}",
            prompt_ids=prompt,
            params=params,
            stop_ids=(0,) if rng.random() < 0.3 else (),
            priority=priority,
            tenant=f"tenant {tenant}",
            weight=settings.tenant_weights[tenant],
            rank=priority if settings.priority_is_rank else 0,
            arrival=now,
            deadline=now + rng.randint(0, 200) / 256 if rng.random() < 0.12 else None,
            cache_salt=f"salt {salt}",
        )
        num_choices = rng.choice((2, 3, 4)) if rng.random() < 0.15 else 1
        choices = [msgspec.structs.replace(first, choice=choice) for choice in range(num_choices)]
        if not poison and prompt and rng.random() < 0.08:
            choices = [self._resumed(request) for request in choices]
        return choices

    def _tenant(self) -> int:
        if self._rng.random() < self.settings.flood_rate:
            return 0
        return self._rng.randrange(len(self.settings.tenant_weights))

    def remember(self, tokens: tuple[int, ...]) -> None:
        """Let later prompts begin with these tokens."""
        self._past = [*self._past[-7:], tokens]

    def _resumed(self, request: GenerateRequest) -> GenerateRequest:
        longest = self.settings.scheduler.max_model_len
        if len(request.prompt_ids) >= longest:
            return request
        tokens = expected_answer(request, self.settings.vocab, longest).tokens
        return msgspec.structs.replace(request, resume_ids=tokens[: self._rng.randint(1, len(tokens))])

    def _prompt(self) -> tuple[int, ...]:
        rng = self._rng
        length = self._length()
        chance = rng.random()
        if self._last_prompt and chance < 0.15:
            return self._last_prompt  # two requests compute the same prompt at the same time
        if self._past and chance < 0.3:
            return rng.choice(self._past)[: self.settings.scheduler.max_model_len - rng.randint(1, 4)]
        if self._past and chance < 0.5:
            beginning = rng.choice(self._past)[: self.settings.scheduler.max_model_len * 3 // 4]
            return beginning + self._random_tokens(max(1, length - len(beginning)))
        if chance < 0.85:
            shared = rng.randint(0, length)
            return rng.choice(self._stems)[:shared] + self._random_tokens(length - shared)
        return self._random_tokens(length)

    def _length(self) -> int:
        rng, size = self._rng, self.settings.block_size
        longest = max(1, self.settings.max_prompt_tokens)
        if rng.random() < 0.01:
            return rng.choice((0, self.settings.scheduler.max_model_len))  # rejected
        if rng.random() < 0.6:
            num_full = rng.randint(1, max(1, longest // size))
            return min(max(1, num_full * size + rng.choice((-1, 0, 0, 1))), longest)
        return rng.randint(1, longest)

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(range(self.settings.vocab), k=count))
