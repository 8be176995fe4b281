"""The cases to run on each model, and their order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.peers.models import FORMATS, LLAMA_1B, QWEN, SMOLLM2, SMOLLM2_Q4, SMOLLM2_Q8

from octavo.bench.serve import WORKLOADS, AtOnce, Fixed, Steady, Summary, Workload

# An engine below this fraction of the best figure is not measured again: it cannot become the best.
GIVE_UP_RATIO = 1 / 3
FAST = ("Octavo", "vLLM CPU", "OpenVINO GenAI")  # engines that keep up with the arrivals, or nearly

Figure: TypeAlias = Callable[[Summary], float | None]


@dataclass(frozen=True)
class PeerCase:
    """A workload on a model, and the figure that it measures: tokens per second, where more is better."""

    model: str
    title: str
    workload: Workload
    figure_name: str
    figure: Figure
    engines: tuple[str, ...] | None = None  # None: all engines

    @property
    def limit(self) -> float | None:
        """Return the tokens per second that no engine can exceed, because of the last request's arrival."""
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


def cases() -> list[PeerCase]:
    single, burst = WORKLOADS["baseline"], WORKLOADS["continuous_batching"]
    long, prefix, prefill = (WORKLOADS[name] for name in ("chunked_prefill", "prefix_caching", "prefill"))
    paced = [
        PeerCase(SMOLLM2, "single", single.scaled(num_requests=2), "decode tok/s", decode_rate),
        PeerCase(SMOLLM2, "burst", burst, "output tok/s", output_rate),
        PeerCase(SMOLLM2, "long", long, "output tok/s", output_rate),
        PeerCase(SMOLLM2, "prefix", prefix, "output tok/s", output_rate),
        PeerCase(SMOLLM2, "prefill", prefill.scaled(num_requests=4), "prompt tok/s", prefill_rate),
    ]
    # The cases that the arrival rate limits, without that limit; only for engines that keep up with it.
    at_once = [
        replace(
            case,
            title=f"{case.title} at once",
            workload=case.workload.scaled(arrivals=AtOnce()),
            engines=FAST,
        )
        for case in paced
        if case.limit is not None
    ]
    larger = [
        PeerCase(
            LLAMA_1B, "single", single.scaled(num_requests=1, output=Fixed(64)), "decode tok/s", decode_rate
        ),
        PeerCase(
            LLAMA_1B, "burst", burst.scaled(num_requests=16, output=Fixed(64)), "output tok/s", output_rate
        ),
        PeerCase(LLAMA_1B, "prefill", prefill.scaled(num_requests=2), "prompt tok/s", prefill_rate),
    ]
    return [*paced, *at_once, *larger, *quantised_cases()]


def quantised_cases() -> list[PeerCase]:
    """Return the cases of quantised models, each for the engines that have a format of the model."""
    single, burst = WORKLOADS["baseline"], WORKLOADS["continuous_batching"]
    long, prefix, prefill = (WORKLOADS[name] for name in ("chunked_prefill", "prefix_caching", "prefill"))
    found = [
        PeerCase(QWEN, "single", single.scaled(num_requests=1), "decode tok/s", decode_rate),
        PeerCase(QWEN, "burst", burst.scaled(num_requests=16, output=Fixed(64)), "output tok/s", output_rate),
        PeerCase(QWEN, "long", long.scaled(num_requests=8), "output tok/s", output_rate),
        PeerCase(QWEN, "prefix", prefix.scaled(num_requests=8), "output tok/s", output_rate),
        PeerCase(QWEN, "prefill", prefill.scaled(num_requests=2), "prompt tok/s", prefill_rate),
        *(
            PeerCase(model, "single", single.scaled(num_requests=2), "decode tok/s", decode_rate)
            for model in (SMOLLM2_Q4, SMOLLM2_Q8)
        ),
    ]
    return [replace(case, engines=tuple(FORMATS[case.model])) for case in found]


def kv_gigabytes_of(model: str) -> int:
    """Return more than any case needs, but little enough to load all engines at once."""
    return 1 if model == LLAMA_1B or model in FORMATS else 2


def slots_of(model: str) -> int:
    """Return the maximum number of concurrent requests, for engines that must be configured with it."""
    return max((case.workload.num_requests for case in cases() if case.model == model), default=1)


@dataclass(frozen=True)
class CaseRound:
    """One case in one round, run by every engine in turn."""

    case: PeerCase
    round: int
    engines: Sequence[str]


def case_rounds(chosen: Sequence[PeerCase], engines: Sequence[str], rounds: int) -> Iterator[CaseRound]:
    """Yield the rounds of all cases, model by model. Each round begins with a different engine, so that
    changes in the machine's speed affect all engines alike."""
    for model in dict.fromkeys(case.model for case in chosen):
        for number in range(rounds):
            for case in chosen:
                if case.model == model:
                    names = [name for name in engines if case.engines is None or name in case.engines]
                    first = number % max(len(names), 1)
                    yield CaseRound(case, number, (*names[first:], *names[:first]))
