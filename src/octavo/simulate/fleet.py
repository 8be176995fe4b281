"""A fleet on a virtual clock: the real hub, router, schedulers and caches, and a model that takes no time.

    arrivals ---> Hub, Router ---> SimulatedReplica (EngineCore, Scheduler, KVManager), one clock for each
       ^                                   |
       +----------- what ended <-----------+

The replica whose clock is behind all others runs the next step. So the order of events is that of their
times.
"""

import heapq
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.cache import KVManager
from octavo.engine.core import EngineCore
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.fleet.cost import ReplicaLoad, RequestSize
from octavo.fleet.router import Route, Router
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import Intake, PromptTask, RequestLimits
from octavo.frontend.output import RequestOutput
from octavo.frontend.updates import Update
from octavo.kernels.library import KernelLibrary
from octavo.kernels.prefix_index import block_hasher
from octavo.plan import SliceResult, StepPlan, StepResult
from octavo.protocol import Abort, EngineOutputs, GenerateRequest, SamplingParams
from octavo.schedule import Scheduler, SchedulerConfig
from octavo.simulate.null_engine import facts_without_model
from octavo.text.tokenizer import Tokenizer

FINGERPRINT = "simulated"
BLOCK_SIZE = 16
DRAWN, NOTHING = SliceResult((7,)), SliceResult()


@dataclass(frozen=True)
class SimulatedSpeed:
    """What one step of a replica takes."""

    seconds_per_step: float = 0.010
    seconds_per_prompt_token: float = 0.001
    seconds_per_sequence: float = 0.001

    def seconds(self, plan: StepPlan) -> float:
        lengths = [len(piece.token_ids) for piece in plan.slices]
        prompt_tokens = sum(length for length in lengths if length > 1)
        return (
            self.seconds_per_step
            + prompt_tokens * self.seconds_per_prompt_token
            + lengths.count(1) * self.seconds_per_sequence
        )


class SimulatedReplica:
    """An engine whose steps take no real time. Owned by SimulatedFleet."""

    def __init__(
        self,
        name: str,
        speed: SimulatedSpeed,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        vocab_size: int,
        caches_prefixes: bool,
    ) -> None:
        self.name = name
        self.now = self.busy_seconds = 0.0
        self._speed = speed
        self._inbox: deque[GenerateRequest | Abort] = deque()
        hasher = block_hasher(FINGERPRINT, BLOCK_SIZE)
        kv = KVManager(num_blocks, BLOCK_SIZE, prefix_caching=caches_prefixes, key_maker=hasher)
        scheduler = Scheduler(config, kv)
        self.core = EngineCore(scheduler, self._execute, lambda: self.now)
        self.facts = facts_without_model(config, kv, vocab_size, FINGERPRINT)

    def send(self, message: GenerateRequest | Abort) -> None:
        self._inbox.append(message)

    @property
    def has_work(self) -> bool:
        return bool(self._inbox) or self.core.has_unfinished

    def step(self, hub: Hub) -> None:
        """Handle messages and run a step."""
        while self._inbox:
            self.core.handle(self._inbox.popleft())
        if self.core.has_unfinished:
            outputs = self.core.step()
            hub.receive(self.name, EngineOutputs(outputs.outputs, outputs.stats, 0, outputs.prefixes))

    def _execute(self, plan: StepPlan) -> StepResult:
        seconds = self._speed.seconds(plan)
        self.now += seconds
        self.busy_seconds += seconds
        return StepResult(tuple([DRAWN if piece.num_sampled else NOTHING for piece in plan.slices]))


class RoundRobin(Router):
    """Chooses every replica in turn, for comparison."""

    def __init__(self, library: KernelLibrary | None = None) -> None:
        super().__init__(library)
        self._in_turn: list[str] = []

    def add(self, replica: str, load: ReplicaLoad) -> None:
        super().add(replica, load)
        self._in_turn.append(replica)

    def choose(
        self, request_id: str, size: RequestSize, keys: "array[int]", excluded: str | None = None
    ) -> Route | None:
        self._in_turn.append(self._in_turn.pop(0))
        return Route(self._in_turn[0], 0)


class Completion:
    """A recipient that waits for the end of a request."""

    is_full = False

    def __init__(self, on_end: Callable[[RequestOutput], None]) -> None:
        self._on_end = on_end

    def put(self, update: Update | Exception) -> None:
        if isinstance(update, Exception):
            raise update
        if isinstance(update, RequestOutput):
            self._on_end(update)


@dataclass(frozen=True)
class FleetSize:
    num_replicas: int
    num_blocks: int  # of each replica
    max_running: int = 64
    max_model_len: int = 8192
    max_step_tokens: int = 512
    caches_prefixes: bool = True


class SimulatedFleet:
    """Owned by one thread."""

    def __init__(
        self,
        size: FleetSize,
        tokenizer: Tokenizer,
        *,
        router: Router | None = None,
        speed: SimulatedSpeed | None = None,
    ) -> None:
        self.hub = Hub(router or Router.with_prefixes())
        self._tokenizer = tokenizer
        self._intake = Intake(tokenizer, RequestLimits(tokenizer.vocab_size, size.max_model_len))
        config = SchedulerConfig(size.max_running, size.max_model_len, size.max_step_tokens)
        self.replicas = [
            SimulatedReplica(
                f"r{number}",
                speed or SimulatedSpeed(),
                config,
                num_blocks=size.num_blocks,
                vocab_size=tokenizer.vocab_size,
                caches_prefixes=size.caches_prefixes,
            )
            for number in range(size.num_replicas)
        ]
        for replica in self.replicas:
            self.connect(replica)
        self._arrivals: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0

    def connect(self, replica: SimulatedReplica) -> None:
        def send_prefixes() -> None:
            self.hub.receive_prefixes(replica.name, replica.core.prefixes())

        self.hub.connect(replica.name, replica, replica.facts, send_prefixes)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._arrivals, (when, next(self._numbers), action))

    def ask(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        on_end: Callable[[RequestOutput], None] = lambda output: None,
        tenant: Tenant = ONLY_TENANT,
    ) -> None:
        """Submit a request now."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0)
        name = f"q{next(self._numbers)}"
        prepared = self._intake.prepare(name, PromptTask(tuple(prompt), params), now=self.now, tenant=tenant)
        self.hub.submit(InFlightRequest(prepared, self._tokenizer, Completion(on_end)))

    def run(self) -> None:
        """Run until nothing is left to do."""
        while True:
            busy = [replica for replica in self.replicas if replica.has_work]
            first = min(busy, key=lambda replica: replica.now, default=None)
            if self._arrivals and (first is None or self._arrivals[0][0] <= first.now):
                self.now, _, action = heapq.heappop(self._arrivals)
                idle = [replica for replica in self.replicas if not replica.has_work]
                action()
                for replica in idle:
                    replica.now = max(replica.now, self.now)
            elif first is None:
                return
            else:
                first.step(self.hub)
                self.now = max(self.now, first.now)

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that were found in a cache."""
        stats = [replica.core.stats() for replica in self.replicas]
        return sum(one.prompt_tokens_cached for one in stats) / sum(one.prompt_tokens for one in stats)

    @property
    def imbalance(self) -> float:
        """The busy time of the busiest replica, divided by the mean."""
        busy = [replica.busy_seconds for replica in self.replicas]
        return max(busy) * len(busy) / sum(busy)
