"""The progress bar of an offline batch: requests, tokens per second, cache hits."""

import time
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from octavo.frontend.output import RequestOutput, StreamDelta

REDRAW_SECONDS = 0.2


class BatchProgress:
    def __init__(self, num_requests: int, *, enabled: bool | None) -> None:
        """Create the bar. With `enabled` None it is shown on a terminal only."""
        disable = None if enabled is None else not enabled
        self._bar: Any = tqdm(total=num_requests, unit="request", disable=disable, dynamic_ncols=True)
        self._enabled = not self._bar.disable
        self._started = self._drawn = time.perf_counter()
        self._tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._draw()
        self._bar.close()

    def update(self, update: StreamDelta | RequestOutput) -> None:
        if isinstance(update, StreamDelta):
            self._tokens += len(update.token_ids)
        else:
            self._prompt_tokens += len(update.prompt_ids)
            self._cached_tokens += update.num_cached
            self._bar.update(1)
        if self._enabled and time.perf_counter() - self._drawn > REDRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        speed = self._tokens / max(self._drawn - self._started, 1e-9)
        hits = 100 * self._cached_tokens / max(self._prompt_tokens, 1)
        self._bar.set_postfix_str(f"{speed:,.0f} tokens/s, {hits:.0f} % of prompts from cache")
