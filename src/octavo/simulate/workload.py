"""Everything that happens to a world, drawn from one seed.

The draws are biased towards trouble: tiny vocabularies, lengths at page borders, pools that hold little more
than one request, prompts that repeat and continue each other.
"""

import random
from dataclasses import dataclass

import msgspec

from octavo.protocol import Abort, GenerateRequest, SamplingParams
from octavo.schedule import UNLIMITED, Admission, SchedulerConfig
from octavo.simulate.fake_model import Hints
from octavo.simulate.oracle import expected_answer


@dataclass(frozen=True)
class Settings:
    """One world: the engine's configuration, and how its clients behave."""

    page_size: int
    num_blocks: int
    prefix_caching: bool
    scheduler: SchedulerConfig
    vocab: int
    num_salts: int
    num_priorities: int
    arrival_steps: int  # then no more requests come
    arrival_rate: float  # groups a step
    burst: int  # groups that come at once, in the first step
    abort_rate: float
    restart_rate: float
    lost_step_rate: float
    late_rate: float  # of tokens that a grammar is not ready for
    longest_prompt: int
    max_tokens: int

    @property
    def capacity(self) -> int:
        return self.page_size * self.num_blocks


def draw_settings(rng: random.Random, crowded: bool) -> Settings:
    """A crowded world begins with hundreds of waiting requests."""
    max_model_len = rng.randint(6, 40)
    page_size = rng.choice((1, 2, 2, 3, 3, 4, 4, 8, max_model_len))
    num_blocks = max(1, round(max_model_len * rng.uniform(0.8, 3.0) / page_size))
    return Settings(
        page_size=page_size,
        num_blocks=num_blocks,
        prefix_caching=rng.random() < 0.88,
        scheduler=SchedulerConfig(
            max_running=rng.choice((1, 2, 3, 4, 4, 6)),
            max_model_len=max_model_len,
            max_step_tokens=rng.choice((2, 5, 8, 12, page_size, 2 * page_size, page_size + 3, 25, UNLIMITED)),
            admission=Admission.STATIC if rng.random() < 0.12 else Admission.CONTINUOUS,
        ),
        vocab=rng.randint(2, 5),
        num_salts=rng.choice((1, 1, 2, 3)),
        num_priorities=rng.choice((1, 2, 2, 3)),
        arrival_steps=rng.randint(100, 600),
        arrival_rate=rng.choice((0.1, 0.2, 0.4)),
        burst=rng.randint(260, 400) if crowded else rng.randint(0, 6),
        abort_rate=rng.choice((0.0, 0.01, 0.05)),
        restart_rate=rng.choice((0.0, 0.0, 0.004)),
        lost_step_rate=rng.choice((0.0, 0.0, 0.01)),
        late_rate=rng.choice((0.0, 0.0, 0.05, 0.3)),
        longest_prompt=max_model_len * rng.randint(1, 5) // 5 - 1,
        max_tokens=3 if crowded else rng.randint(4, 30),
    )


class Workload:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.settings = draw_settings(self._rng, crowded=seed % 32 == 5)
        self._serial = 0
        self._past: list[tuple[int, ...]] = []  # prompts, with their answers
        self._last_prompt: tuple[int, ...] = ()
        longest = self.settings.scheduler.max_model_len
        self._stems = [self._random_tokens(longest) for _ in range(3)]

    def arrivals(self, step: int, num_live: int) -> int:
        """How many requests come before this step. An idle world gets one: empty steps test nothing."""
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
        """Whether the workers had begun with a plan when it was lost."""
        return self._rng.random() < 0.5

    def aborts(self, live: list[str], ended: str) -> list[Abort]:
        """Mostly of live requests, sometimes of ended or unknown ones, sometimes the same twice."""
        rng = self._rng
        chance = rng.random()
        if live and chance < 0.75:
            request_id = rng.choice(live)
        else:
            request_id = ended if chance < 0.9 else "unknown"
        return [Abort(request_id, rng.choice((None, None, 0, 1)))] * rng.choice((1, 1, 1, 2))

    def request(self, now: float) -> list[GenerateRequest]:
        """One request: a struct per choice."""
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
        first = GenerateRequest(
            request_id=f"r{self._serial}",
            prompt_ids=prompt,
            params=params,
            stop_ids=(0,) if rng.random() < 0.3 else (),
            priority=rng.randrange(settings.num_priorities),
            arrival=now,
            deadline=now + rng.randint(0, 200) / 256 if rng.random() < 0.12 else None,
            cache_salt=f"tenant {salt}",
        )
        num_choices = rng.choice((2, 3, 4)) if rng.random() < 0.15 else 1
        choices = [msgspec.structs.replace(first, choice=choice) for choice in range(num_choices)]
        if not poison and prompt and rng.random() < 0.08:
            choices = [self._resumed(request) for request in choices]
        return choices

    def remember(self, tokens: tuple[int, ...]) -> None:
        """Later prompts may begin with these."""
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
            return self._last_prompt  # two that compute the same at the same time
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
        rng, size = self._rng, self.settings.page_size
        longest = max(1, self.settings.longest_prompt)
        if rng.random() < 0.01:
            return rng.choice((0, self.settings.scheduler.max_model_len))  # refused
        if rng.random() < 0.6:
            pages = rng.randint(1, max(1, longest // size))
            return min(max(1, pages * size + rng.choice((-1, 0, 0, 1))), longest)
        return rng.randint(1, longest)

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(range(self.settings.vocab), k=count))
