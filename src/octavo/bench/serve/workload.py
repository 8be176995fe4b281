"""Workloads: the number, the lengths and the arrivals of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from octavo.bench.serve.arrivals import Arrivals, AtOnce, Closed, Poisson, Steady
from octavo.bench.serve.lengths import (
    CONVERSATION_OUTPUT,
    CONVERSATION_PROMPT,
    Fixed,
    Lengths,
    LogUniform,
    Mix,
)


@dataclass(frozen=True)
class Workload:
    name: str
    description: str
    num_requests: int
    arrivals: Arrivals
    prompt: Lengths  # tokens of each prompt that are not shared
    output: Lengths
    shared: int = 0  # tokens before those, equal in all prompts of a run

    def scaled(
        self,
        *,
        num_requests: int | None = None,
        output: Lengths | None = None,
        prompt: Lengths | None = None,
        arrivals: Arrivals | None = None,
        shared: int | None = None,
    ) -> "Workload":
        """Return the workload with some values replaced. The name stays; the report contains the values."""
        return replace(
            self,
            num_requests=self.num_requests if num_requests is None else num_requests,
            output=output or self.output,
            prompt=prompt or self.prompt,
            arrivals=arrivals or self.arrivals,
            shared=self.shared if shared is None else shared,
        )


_NAMED = (
    Workload(
        "conversation",
        "independent users with the lengths of real conversations",
        64,
        Poisson(2.0),
        CONVERSATION_PROMPT,
        CONVERSATION_OUTPUT,
    ),
    Workload(
        "baseline", "one request at a time: what a single user sees", 8, Closed(1), Fixed(128), Fixed(128)
    ),
    Workload(
        "continuous_batching",
        "many requests at once: how much batching gains",
        48,
        AtOnce(),
        Fixed(128),
        Fixed(128),
    ),
    Workload(
        "paged_attention",
        "many requests at once, from very short to long: memory reserved for the maximum length would be"
        " mostly wasted",
        48,
        AtOnce(),
        LogUniform(16, 1024),
        LogUniform(16, 256),
    ),
    Workload(
        "chunked_prefill",
        "long prompts arrive during other answers: do these have to wait?",
        24,
        Steady(4.0),
        Mix(((0.75, 1024), (0.25, 128))),
        Fixed(64),
    ),
    Workload(
        "prefix_caching",
        "all prompts start with the same 1,024 tokens: are these computed only once?",
        48,
        Steady(8.0),
        Fixed(32),
        Fixed(32),
        shared=1024,
    ),
    Workload("prefill", "prompts only, with one output token", 8, Closed(1), Fixed(1024), Fixed(1)),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _NAMED})
