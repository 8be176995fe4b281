"""Stream one answer to the terminal and measure it as the user sees it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.cli.model import LanguageModel
from octavo.config import counted
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.frontend.output import StreamDelta


STOPPED = "stopped"  # by Ctrl-C


@dataclass(frozen=True)
class PrintedAnswer:
    text: str
    reasoning: str
    num_tokens: int
    finish_reason: str  # a FinishReason, or STOPPED
    seconds_to_first: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    seed: int | None

    def summary(self) -> str:
        """Return the line below an answer: 12 tokens · 45.2 tok/s · prompt 210 (198 cached) · ..."""
        parts = [counted(self.num_tokens, "token")]
        after_first = self.seconds - self.seconds_to_first
        if self.num_tokens > 1 and after_first > 0:
            parts.append(f"{(self.num_tokens - 1) / after_first:.1f} tok/s")
        parts.append(f"prompt {self.prompt_tokens} ({self.cached_tokens} cached)")
        if self.num_tokens:
            parts.append(f"first token {self.seconds_to_first:.2f} s")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        if self.finish_reason != "stop":
            parts.append(self.finish_reason)
        return " · ".join(parts)


def ignore(text: str) -> None:
    """Discard reasoning that is not shown."""


def stream_answer(
    llm: LanguageModel,
    start: "Callable[[], Iterator[StreamDelta]]",
    write: Callable[[str], None],
    seed: int | None,
    *,
    write_reasoning: Callable[[str], None],
) -> PrintedAnswer:
    """Write the deltas of one choice until it finishes or Ctrl-C stops it; return the answer and its timings.

    Ctrl-C takes effect immediately, at any point. The model's reasoning goes to `write_reasoning`.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    num_tokens, num_cached, finish = 0, 0, STOPPED
    before = llm.stats().prompt_tokens
    began = time.perf_counter()
    first = None
    deltas: Iterator[StreamDelta] = iter(())
    try:
        deltas = start()
        for delta in deltas:
            if first is None and delta.token_ids:
                first = time.perf_counter()
            num_tokens += len(delta.token_ids)
            num_cached = delta.num_cached
            if delta.reasoning:
                thoughts.append(delta.reasoning)
                write_reasoning(delta.reasoning)
            if delta.text and thoughts and not any(texts):
                write_reasoning("\n\n")
            texts.append(delta.text)
            write(delta.text)
            if delta.error is not None:
                raise RequestError(f"the answer failed: {delta.error}")
            if delta.finish_reason is not None:
                finish = str(delta.finish_reason)
    except KeyboardInterrupt:
        finish = STOPPED
    finally:
        close = getattr(deltas, "close", None)  # aborts the request now, not at garbage collection
        if close is not None:
            close()
    ended = time.perf_counter()
    return PrintedAnswer(
        text="".join(texts),
        reasoning="".join(thoughts),
        num_tokens=num_tokens,
        finish_reason=finish,
        seconds_to_first=(first or ended) - began,
        seconds=ended - began,
        prompt_tokens=llm.stats().prompt_tokens - before,
        cached_tokens=num_cached,
        seed=seed,
    )
