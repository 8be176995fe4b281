"""Invariant 3: while a tenant has work, it gets its part of the tokens that the engine computes.

Counted in tokens of prompts and answers, as the front end counts them, and never in seconds. Intervals in
which the attack itself had stopped or killed a process do not count, because requests cannot reach the engine
then, and neither do those in which the attack was paused and sent none.
"""

import asyncio
import time
from dataclasses import dataclass

from attacker.attack import Attack
from attacker.findings import Invariant
from attacker.honest import HonestTenant

SAMPLE_SECONDS = 0.4
MAX_SAMPLE_SECONDS = 1.5  # after longer, this process was paused itself, and honest tenants sent nothing
MIN_TOKENS = 2500  # computed in a window, so that the lengths of single answers do not matter
WINDOW_TOKENS = 30_000  # after which a window ends; a short run is one window


@dataclass
class Window:
    """Tokens computed for all tenants, and for this one, while it had requests in flight."""

    num_all: float = 0.0
    num_own: float = 0.0


class Shares:
    def __init__(self, attack: Attack, tenants: list[HonestTenant]) -> None:
        self._attack = attack
        self._tenants = tenants
        self._windows = [Window() for _ in tenants]
        self._last: tuple[float, list[float]] | None = None  # all and own tokens; None during a fault
        self._num_faults = 0
        self.lowest: float | None = None  # ratio of tokens to the share, in complete windows

    async def watch(self) -> None:
        while not self._attack.has_ended:
            await self.sample()
            began = time.monotonic()
            await asyncio.sleep(SAMPLE_SECONDS)
            if time.monotonic() - began > MAX_SAMPLE_SECONDS:
                self._last = None
        self.check(is_end=True)

    async def sample(self) -> None:
        value = await self._attack.metrics()
        if value is None:
            self._last = None
            return
        names = ("prompt_tokens_total", "generation_tokens_total")
        everything = sum(value(name) for name in names)
        own = [sum(value(f"key_{name}", one.tenant.name) for name in names) for one in self._tenants]
        faults = self._attack.faults
        had_fault = faults.is_in_progress or len(faults.faults) != self._num_faults
        self._num_faults = len(faults.faults)
        last, self._last = self._last, None if faults.is_in_progress else (everything, own)
        if last is None or had_fault:
            return
        for index, (tenant, window) in enumerate(zip(self._tenants, self._windows, strict=True)):
            if tenant.num_in_flight:
                window.num_all += everything - last[0]
                window.num_own += own[index] - last[1][index]
        self.check(is_end=False)

    def check(self, *, is_end: bool) -> None:
        for index, (tenant, window) in enumerate(zip(self._tenants, self._windows, strict=True)):
            if window.num_all < (MIN_TOKENS if is_end else WINDOW_TOKENS):
                continue
            self._windows[index] = Window()
            weights = self._attack.tenants.inferring_weight
            part = tenant.tenant.weight / weights
            ratio = window.num_own / (part * window.num_all)
            self.lowest = ratio if self.lowest is None else min(self.lowest, ratio)
            if ratio < self._attack.settings.min_share:
                text = (
                    f"{tenant.tenant.name} with weight {tenant.tenant.weight} of {weights} got"
                    f" {window.num_own:.0f} of {window.num_all:.0f}"
                    f" tokens, which is {ratio:.0%} of its share"
                )
                self._attack.findings.violate(Invariant.GETS_ITS_SHARE, text)
