"""What the scheduler counts."""

from dataclasses import dataclass

from octavo.cache import KVManager
from octavo.protocol import EngineStats


@dataclass
class Counters:
    steps: int = 0
    tokens_computed: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    tokens_sampled: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    preemptions: int = 0
    step_seconds: float = 0.0

    def stats(self, num_running: int, num_waiting: int, kv: KVManager) -> EngineStats:
        return EngineStats(
            num_running=num_running,
            num_waiting=num_waiting,
            blocks_total=kv.pool.num_total,
            blocks_free=kv.pool.num_free,
            blocks_cached=kv.num_cached,
            blocks_idle=kv.num_available - kv.pool.num_free,
            steps=self.steps,
            tokens_computed=self.tokens_computed,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_cached=self.prompt_tokens_cached,
            tokens_sampled=self.tokens_sampled,
            tokens_drafted=self.tokens_drafted,
            tokens_accepted=self.tokens_accepted,
            preemptions=self.preemptions,
            step_seconds=self.step_seconds,
        )
