"""What is run on which model, and in which order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.peers.models import FORMATS, LLAMA_1B, QWEN, SMOLLM2, SMOLLM2_Q4, SMOLLM2_Q8

from octavo.bench.serve import WORKLOADS, AtOnce, Fixed, Steady, Summary, Workload

# An engine with less than this part of the best figure is not asked again: it cannot become the best.
HOPELESS = 1 / 3
FAST = ("Octavo", "vLLM CPU", "OpenVINO GenAI")  # those that keep up with the arrivals, or nearly

Figure: TypeAlias = Callable[[Summary], float | None]


@dataclass(frozen=True)
class Case:
    """A workload on a model, and the figure that it is about: tokens per second, more is better."""

    model: str
    title: str
    workload: Workload
    figure_name: str
    figure: Figure
    engines: tuple[str, ...] | None = None  # None: all run it

    @property
    def most(self) -> float | None:
        """Tokens per second that no engine can pass, however fast: the last request comes too late."""
        load = self.workload
        if not isinstance(load.arrivals, Steady):
            return None
        return load.num_requests * load.output.quantile(0.5) * load.arrivals.rate / (load.num_requests - 1)

    @property
    def key(self) -> str:
        return f"{self.model}/{self.title}"


def decode_rate(summary: Summary) -> float | None:
    return summary.decode_tokens_per_second


def output_rate(summary: Summary) -> float | None:
    return summary.output_tokens_per_second


def prefill_rate(summary: Summary) -> float | None:
    return summary.prefill_tokens_per_second


def cases() -> list[Case]:
    single, burst = WORKLOADS["baseline"], WORKLOADS["continuous_batching"]
    long, prefix, prefill = (WORKLOADS[name] for name in ("chunked_prefill", "prefix_caching", "prefill"))
    paced = [
        Case(SMOLLM2, "single", single.scaled(num_requests=2), "decode tok/s", decode_rate),
        Case(SMOLLM2, "burst", burst, "output tok/s", output_rate),
        Case(SMOLLM2, "long", long, "output tok/s", output_rate),
        Case(SMOLLM2, "prefix", prefix, "output tok/s", output_rate),
        Case(SMOLLM2, "prefill", prefill.scaled(num_requests=4), "prompt tok/s", prefill_rate),
    ]
    # What arrivals limit, without that limit; not for those who cannot keep up with them anyway.
    at_once = [
        replace(
            case,
            title=f"{case.title} at once",
            workload=case.workload.scaled(arrivals=AtOnce()),
            engines=FAST,
        )
        for case in paced
        if case.most is not None
    ]
    larger = [
        Case(
            LLAMA_1B, "single", single.scaled(num_requests=1, output=Fixed(64)), "decode tok/s", decode_rate
        ),
        Case(LLAMA_1B, "burst", burst.scaled(num_requests=16, output=Fixed(64)), "output tok/s", output_rate),
        Case(LLAMA_1B, "prefill", prefill.scaled(num_requests=2), "prompt tok/s", prefill_rate),
    ]
    return [*paced, *at_once, *larger, *quantised_cases()]


def quantised_cases() -> list[Case]:
    """Run by the engines that have a format of the model."""
    single, burst = WORKLOADS["baseline"], WORKLOADS["continuous_batching"]
    long, prefix, prefill = (WORKLOADS[name] for name in ("chunked_prefill", "prefix_caching", "prefill"))
    found = [
        Case(QWEN, "single", single.scaled(num_requests=1), "decode tok/s", decode_rate),
        Case(QWEN, "burst", burst.scaled(num_requests=16, output=Fixed(64)), "output tok/s", output_rate),
        Case(QWEN, "long", long.scaled(num_requests=8), "output tok/s", output_rate),
        Case(QWEN, "prefix", prefix.scaled(num_requests=8), "output tok/s", output_rate),
        Case(QWEN, "prefill", prefill.scaled(num_requests=2), "prompt tok/s", prefill_rate),
        *(
            Case(model, "single", single.scaled(num_requests=2), "decode tok/s", decode_rate)
            for model in (SMOLLM2_Q4, SMOLLM2_Q8)
        ),
    ]
    return [replace(case, engines=tuple(FORMATS[case.model])) for case in found]


def kv_gigabytes_of(model: str) -> int:
    """More than any of the cases needs, and little enough for all engines to be loaded beside each other."""
    return 1 if model == LLAMA_1B or model in FORMATS else 2


def slots_of(model: str) -> int:
    """Requests at once at most, for engines that must be told."""
    return max((case.workload.num_requests for case in cases() if case.model == model), default=1)


@dataclass(frozen=True)
class Heat:
    """One case, run by every engine in turn, one right after the other."""

    case: Case
    round: int
    engines: Sequence[str]


def heats(chosen: Sequence[Case], engines: Sequence[str], rounds: int) -> Iterator[Heat]:
    """Model by model, round by round; each round begins with another engine. So whatever the machine does in
    the meantime meets all of them."""
    for model in dict.fromkeys(case.model for case in chosen):
        for number in range(rounds):
            for case in chosen:
                if case.model == model:
                    names = [name for name in engines if case.engines is None or name in case.engines]
                    first = number % max(len(names), 1)
                    yield Heat(case, number, (*names[first:], *names[:first]))
