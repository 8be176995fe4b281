"""Every metric there is. docs/observability.md has the same list for people, and a test compares them.

Names are those of vLLM with another prefix, where vLLM has the metric: its dashboards work after one
replacement. Every sample has the label `model_name`. Values of other labels are from fixed sets: no client
can make the list longer.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    name: str  # as it is scraped
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()  # beside `model_name`


def counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"octavo:{name}_total", Kind.COUNTER, meaning, labels)


def gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"octavo:{name}", Kind.GAUGE, meaning, labels)


def histogram(name: str, meaning: str) -> Metric:
    return Metric(f"octavo:{name}_seconds", Kind.HISTOGRAM, meaning)


HTTP_REQUESTS = counter(
    "http_requests",
    "HTTP requests answered, by route and class of status; none: the client left before an answer",
    "route",
    "status",
)
FINISHED = counter(
    "request_success",
    "sequences ended, by reason; abort: the client left, or another sequence of its request failed",
    "finished_reason",
)
PROMPT_TOKENS = counter(
    "prompt_tokens", "prompt tokens of prompts that got a first token; once for all n answers"
)
GENERATION_TOKENS = counter("generation_tokens", "tokens generated for clients")

TIME_TO_FIRST_TOKEN = histogram("time_to_first_token", "from a request's arrival to a sequence's first token")
INTER_TOKEN_LATENCY = histogram("inter_token_latency", "from one token of a sequence to the next")
E2E_LATENCY = histogram(
    "e2e_request_latency", "from a request's arrival to a sequence's end by stop or length"
)
QUEUE_TIME = histogram("request_queue_time", "a sequence's wait for the engine to begin with it")
PREFILL_TIME = histogram("request_prefill_time", "from a sequence's begin to its first token")
DECODE_TIME = histogram("request_decode_time", "from a sequence's first token to its last")

RUNNING = gauge("num_requests_running", "sequences in the engine's batch")
WAITING = gauge("num_requests_waiting", "sequences that wait for the engine to begin with them")
QUEUED = gauge("num_requests_queued", "sequences without a first token: what --max-queued-requests bounds")
QUEUED_TOKENS = gauge("num_tokens_queued", "their prompt tokens: what --max-queued-tokens bounds")
KV_USE = gauge("kv_cache_usage_perc", "fraction of the KV cache's pages that sequences hold; 1 is full")
KV_FILLED = gauge(
    "kv_cache_filled_perc", "fraction of the KV cache's pages with anything in them, kept prefixes too"
)
READY = gauge("ready", "1: /readyz says yes")

PREFIX_QUERIES = counter(
    "prefix_cache_queries", "prompt tokens looked up in the prefix cache, for each sequence"
)
PREFIX_HITS = counter("prefix_cache_hits", "of them, those that were found")
PREEMPTIONS = counter("num_preemptions", "sequences that had to give their pages back and begin again")
STEP_TIME = histogram("step", "one step of the engine; its count is the number of steps")
ENGINE_RESTARTS = counter("engine_restarts", "engines that died or hung, and were replaced")
TASKS = gauge("asyncio_tasks", "tasks of the front end's event loop: a few, and some for each request")
STARTUP = gauge("startup_seconds", "how long the last start of an engine has spent, by phase", "phase")
BUILD = gauge("build_info", "always 1; what runs here", "version", "device", "dtype", "system_fingerprint")

METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS,
    FINISHED,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_LATENCY,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    RUNNING,
    WAITING,
    QUEUED,
    QUEUED_TOKENS,
    KV_USE,
    KV_FILLED,
    READY,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PREEMPTIONS,
    STEP_TIME,
    ENGINE_RESTARTS,
    TASKS,
    STARTUP,
    BUILD,
)
