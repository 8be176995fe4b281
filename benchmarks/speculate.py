"""Measures speculative decoding: the speed of decoding with drafts divided by that without, per prompt.

    python -m benchmarks.speculate MODEL --speculate auto|ngram|suffix|draft:MODEL
                                         [--part edits|agents|code|prose] [--prompts N]
                                         [--max-tokens 160] [--temperature 0] [--batch N] [--own-noise]

The model is open twice, once without drafts. Every batch of prompts runs on both, in turns of half a
second, so that both see the same machine, and the program fails unless the answers have the same tokens.
Prompts are in the prefix cache before a run, so its first step computes only their ends; it is not
measured. With --own-noise, a draft model samples with other noise than the large model, to show what the
same noise gains. Parts:

    edits   rename something in a source file of this repository, and write the whole file
    agents  call a tool in each of 12 turns; the results are added to the conversation
    code    write a new function
    prose   write a new text
"""

import argparse
import copy
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from benchmarks.speculation_prompts import PARTS, Conversation, tools, with_results

from octavo import LLM, SamplingParams
from octavo.dialect.pieces import ParsedCall
from octavo.sampling import RowOutcome, Sampler, SampleRow

KV_MEMORY = "1GiB"
TURN_SECONDS = 0.5

Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class RunFigures:
    """Figures of one batch of prompts on one model."""

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float  # of all steps but the first
    steps: int
    drafted: int
    accepted: int
    calls: tuple[tuple[ParsedCall, ...], ...]  # of each answer

    @property
    def num_decoded(self) -> int:
        """Tokens after the first of each answer."""
        return sum(len(ids) - 1 for ids in self.token_ids)


# -- measuring --------------------------------------------------------------------------------------------


class Turns:
    """Lets engines run their steps in turns, and measures each step."""

    def __init__(self, llms: Sequence[LLM]) -> None:
        self._changed = threading.Condition()
        self._running: list[LLM] = []  # in the order of their turns
        self._turn_began = 0.0
        self._seconds: dict[LLM, list[float]] = {}
        for llm in llms:
            channel: Any = llm._channel
            channel.step = partial(self._step, llm, channel.step)

    def run(self, llms: Sequence[LLM], work: Callable[[LLM], Any]) -> list[tuple[Any, float]]:
        """Run `work` for each engine. Return the results, and the seconds of all steps but the first."""
        self._running, self._seconds = list(llms), {llm: [] for llm in llms}
        self._turn_began = time.perf_counter()
        with ThreadPoolExecutor(len(llms)) as threads:
            results = list(threads.map(partial(self._run_one, work), llms))
        return [(result, sum(self._seconds[llm][1:])) for result, llm in zip(results, llms, strict=True)]

    def _run_one(self, work: Callable[[LLM], Any], llm: LLM) -> Any:
        try:
            return work(llm)
        finally:
            with self._changed:
                self._running.remove(llm)
                self._changed.notify_all()

    def _step(self, llm: LLM, step: Callable[[], Any]) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._running[0] is llm)
        began = time.perf_counter()
        outputs = step()
        ended = time.perf_counter()
        self._seconds[llm].append(ended - began)
        with self._changed:
            if ended - self._turn_began >= TURN_SECONDS:
                self._running.append(self._running.pop(0))
                self._turn_began = ended
                self._changed.notify_all()
        return outputs


def answer(
    turns: Turns,
    llms: Sequence[LLM],
    chats: Sequence[Chat],
    params: Sequence[SamplingParams],
    *,
    uses_tools: bool,
) -> list[RunFigures]:
    """Return the figures of each engine."""
    with_tools: dict[str, Any] = {}
    if uses_tools:
        with_tools = {"tools": tools(), "tool_choice": "required", "parallel_tool_calls": False}
    before = [llm.stats() for llm in llms]
    runs = turns.run(llms, lambda llm: llm.chat(chats, params, progress=False, **with_tools))
    after = [llm.stats() for llm in llms]
    return [
        RunFigures(
            tuple(output.token_ids for output in outputs),
            seconds,
            new.steps - old.steps,
            new.tokens_drafted - old.tokens_drafted,
            new.tokens_accepted - old.tokens_accepted,
            tuple(output.choices[0].calls for output in outputs),
        )
        for (outputs, seconds), new, old in zip(runs, after, before, strict=True)
    ]


def fill_prefix_cache(turns: Turns, llms: Sequence[LLM], chats: Sequence[Chat], *, uses_tools: bool) -> None:
    params = [SamplingParams(max_tokens=1, temperature=0.0)] * len(chats)
    answer(turns, llms, chats, params, uses_tools=uses_tools)


def measure(
    turns: Turns, llms: Sequence[LLM], conversations: Sequence[Conversation], options: argparse.Namespace
) -> list[tuple[RunFigures, RunFigures]]:
    """Return the figures of each batch in each turn of its conversations: without drafts, and with them."""
    measured: list[tuple[RunFigures, RunFigures]] = []
    for start in range(0, len(conversations), options.batch):
        batch = conversations[start : start + options.batch]
        params = [
            SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=start + i)
            for i in range(len(batch))
        ]
        chats = [conversation.start() for conversation in batch]
        uses_tools = batch[0].uses_tools
        for _ in range(batch[0].num_turns):
            fill_prefix_cache(turns, llms, chats, uses_tools=uses_tools)
            off, on = answer(turns, llms, chats, params, uses_tools=uses_tools)
            if off.token_ids != on.token_ids:
                sys.exit(f"the answers differ: {chats!r}: {off.token_ids} {on.token_ids}")
            speed = off.seconds / max(on.seconds, 1e-9)
            print(
                f"{start + len(batch)}/{len(conversations)}  {off.num_decoded} tokens,"
                f" {off.seconds:.2f} s off, {on.seconds:.2f} s on, {speed:.2f}x,"
                f" {on.accepted}/{on.drafted} accepted",
                file=sys.stderr,
                flush=True,
            )
            if off.num_decoded:
                measured.append((off, on))
            chats = [with_results(chat, calls) for chat, calls in zip(chats, off.calls, strict=True)]
    return measured


class OwnNoise:
    """Samples like another sampler, but with noise of its own."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample_rows(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[RowOutcome]:
        others = []
        for row in rows:
            state = copy.copy(row.state)
            state.seed += 1 << 40
            others.append(msgspec.structs.replace(row, state=state))
        return self._sampler.sample_rows(logits, others)


def use_own_noise(llm: LLM) -> None:
    runner: Any = llm._channel._open_core._execute
    draft_model = runner.__self__._draft_model
    if draft_model is None:
        sys.exit("--own-noise needs --speculate draft:MODEL")
    draft_model._sampler = OwnNoise(draft_model._sampler)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def print_row(part: str, measured: Sequence[tuple[RunFigures, RunFigures]]) -> None:
    if not measured:
        print(f"| {part} | no tokens |", flush=True)
        return
    low, middle, high = quartiles([off.seconds / on.seconds for off, on in measured])
    cells = [part, f"{middle:.2f} ({low:.2f} to {high:.2f})"]
    seconds, per_step, costs = [], [], []
    for figures in zip(*measured, strict=True):  # without drafts, then with them
        steps = max(1, sum(one.steps for one in figures) - len(figures))  # without the first of each run
        seconds.append(sum(one.seconds for one in figures))
        per_step.append(sum(one.num_decoded for one in figures) / steps)
        costs.append(1000 * seconds[-1] / steps)
    drafted, accepted = sum(on.drafted for _, on in measured), sum(on.accepted for _, on in measured)
    cells.append(" / ".join(f"{one:.2f}" for one in per_step))
    cells.append(f"{accepted} / {drafted}")
    cells.append(" / ".join(f"{one:.1f}" for one in costs))
    cells.append(" / ".join(f"{one:.1f}" for one in seconds))
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--speculate", default="suffix", help="auto, ngram, suffix or draft:MODEL")
    parser.add_argument("--own-noise", action="store_true", help="of the draft model")
    parser.add_argument("--draft-tokens", type=int, help="maximum drafts per sequence and step")
    parser.add_argument("--part", choices=PARTS, action="append", help="may be repeated; all by default")
    parser.add_argument("--prompts", type=int, default=40, help="at most, per part")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="prompts at a time")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    shared = {"kv_memory": KV_MEMORY, "threads": options.threads, "progress": False}
    drafts = {} if options.draft_tokens is None else {"draft_tokens": options.draft_tokens}
    with (
        LLM(options.model, speculate="off", **shared) as plain,
        LLM(options.model, speculate=options.speculate, **drafts, **shared) as drafting,
    ):
        if options.own_noise:
            use_own_noise(drafting)
        print(
            "| part | speed, times that without drafts (quartiles) | tokens per step, off / on"
            " | accepted / drafted | ms per step, off / on | s of decoding, off / on |"
            "\n|---|---|---|---|---|---|"
        )
        llms = (plain, drafting)
        turns = Turns(llms)
        for part in options.part or PARTS:
            conversations = PARTS[part]()[: options.prompts]
            fill_prefix_cache(turns, llms, [conversations[0].start()], uses_tools=False)  # warm-up
            print_row(part, measure(turns, llms, conversations, options))


if __name__ == "__main__":
    main()
