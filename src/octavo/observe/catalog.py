"""The list of all metrics. docs/observability.md documents the same list, and a test compares them.

A metric that vLLM also has keeps vLLM's name with another prefix, so vLLM dashboards work after one text
replacement. Every sample has the label `model_name`. Other labels have fixed sets of values or names from the
key file, so clients cannot add time series.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    name: str  # as in the scraped output
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()  # in addition to `model_name`


def counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"octavo:{name}_total", Kind.COUNTER, meaning, labels)


def gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"octavo:{name}", Kind.GAUGE, meaning, labels)


def histogram(name: str, meaning: str) -> Metric:
    return Metric(f"octavo:{name}_seconds", Kind.HISTOGRAM, meaning)


HTTP_REQUESTS = counter(
    "http_requests",
    "HTTP requests by route and status class; none: the client disconnected before the response",
    "route",
    "status",
)
FINISHED = counter(
    "request_success",
    "finished sequences by reason; abort: client disconnected, or another sequence of its request failed",
    "finished_reason",
)
PROMPT_TOKENS = counter(
    "prompt_tokens", "tokens of prompts that have produced a first token; counted once for all n answers"
)
GENERATION_TOKENS = counter("generation_tokens", "tokens generated for clients")

# Only if API keys are set. The label `key` is the name of the keys.
KEY_REQUESTS = counter(
    "key_requests", "HTTP requests with a key of this name, by status class", "key", "status"
)
KEY_PROMPT_TOKENS = counter(
    "key_prompt_tokens", "as octavo:prompt_tokens_total, for keys of this name", "key"
)
KEY_GENERATION_TOKENS = counter(
    "key_generation_tokens", "as octavo:generation_tokens_total, for keys of this name", "key"
)
KEY_REJECTED = counter(
    "key_rejected",
    "requests with a key of this name that got 429; limit: that of the key, or queue if the server"
    " had no room for it",
    "key",
    "limit",
)
KEY_IN_FLIGHT = gauge("key_requests_in_flight", "in-flight generation requests of keys of this name", "key")

TIME_TO_FIRST_TOKEN = histogram(
    "time_to_first_token", "time from a request's arrival to a sequence's first token"
)
INTER_TOKEN_LATENCY = histogram("inter_token_latency", "time between consecutive tokens of a sequence")
E2E_LATENCY = histogram(
    "e2e_request_latency", "time from a request's arrival to a sequence's end by stop or length"
)
QUEUE_TIME = histogram("request_queue_time", "time a sequence waits before the engine starts it")
PREFILL_TIME = histogram("request_prefill_time", "time from a sequence's start to its first token")
DECODE_TIME = histogram("request_decode_time", "time from a sequence's first token to its last")

RUNNING = gauge("num_requests_running", "sequences in the engine's batch")
WAITING = gauge("num_requests_waiting", "sequences waiting for the engine to start them")
QUEUED = gauge("num_requests_queued", "sequences without a first token, limited by --max-queued-requests")
QUEUED_TOKENS = gauge(
    "num_tokens_queued", "prompt tokens of sequences without a first token, limited by --max-queued-tokens"
)
QUEUE_SECONDS = gauge("queue_seconds", "time that a new request would wait until an engine starts it")
MAX_QUEUED = gauge("max_queued_requests", "the limit of octavo:num_requests_queued")
MAX_QUEUED_TOKENS = gauge("max_queued_tokens", "the limit of octavo:num_tokens_queued")
KV_USE = gauge("kv_cache_usage_perc", "fraction of KV blocks held by sequences; 1 is full")
KV_FILLED = gauge(
    "kv_cache_filled_perc", "fraction of KV blocks that contain data, including cached prefixes"
)
READY = gauge("ready", "1 if /readyz reports ready, else 0")

PREFIX_QUERIES = counter(
    "prefix_cache_queries", "prompt tokens looked up in the prefix cache, counted for each sequence"
)
PREFIX_HITS = counter(
    "prefix_cache_hits", "prompt tokens found in the prefix cache, counted for each sequence"
)
PREEMPTIONS = counter("num_preemptions", "times a sequence gave its KV blocks back and had to start again")
DRAFTED = counter(
    "spec_decode_num_draft_tokens", "tokens that steps computed as drafts of the next tokens of an answer"
)
ACCEPTED = counter(
    "spec_decode_num_accepted_tokens", "drafted tokens that the model drew, too, so that a step gave several"
)
STEP_TIME = histogram("step", "duration of an engine step; the count is the number of steps")
ENGINE_RESTARTS = counter(
    "engine_restarts", "engines that were ready, and replaced because they died or hung; not by an operator"
)
MOVES = counter("request_moves", "times a request continued on another engine, after a loss or a drain")
AUDITED = counter("audited_requests", "requests whose answers by two replicas were compared: see --audit")
AUDIT_MISMATCHES = counter(
    "audit_mismatches", "requests that this replica answered differently from the others", "replica"
)

# Of each replica. The label `replica` is its name. The metrics without it are sums over all replicas, and
# include those that were removed.
REPLICA_STATE = gauge("replica_state", "1 for the state that the replica is in, else 0", "replica", "state")
REPLICA_RUNNING = gauge("replica_num_requests_running", "sequences in the batch of its engine", "replica")
REPLICA_WAITING = gauge(
    "replica_num_requests_waiting", "sequences that its engine has not started", "replica"
)
REPLICA_KV_USE = gauge(
    "replica_kv_cache_usage_perc", "fraction of its KV blocks held by sequences; 1 is full", "replica"
)
REPLICA_BUSY = counter(
    "replica_busy_seconds", "time in engine steps; its rate is the load of the replica, 1 is full", "replica"
)
REPLICA_TOKENS = counter(
    "replica_generation_tokens",
    "tokens generated by its engines, including those of audits and those not sent to a client",
    "replica",
)
REPLICA_PREFIX_QUERIES = counter(
    "replica_prefix_cache_queries", "as octavo:prefix_cache_queries_total, of this replica", "replica"
)
REPLICA_PREFIX_HITS = counter(
    "replica_prefix_cache_hits", "as octavo:prefix_cache_hits_total, of this replica", "replica"
)
REPLICA_PREEMPTIONS = counter(
    "replica_num_preemptions", "as octavo:num_preemptions_total, of this replica", "replica"
)
REPLICA_RESTARTS = counter(
    "replica_engine_restarts", "as octavo:engine_restarts_total, of this replica", "replica"
)
REPLICA_SUSPICIONS = counter(
    "replica_suspicions", "times that its engine did not respond, so that its requests moved", "replica"
)
REPLICA_MOVES_IN = counter(
    "replica_request_moves_in",
    "requests that continued here after another engine had begun with them",
    "replica",
)
REPLICA_MOVES_OUT = counter(
    "replica_request_moves_out",
    "requests that another engine continued: this one died, did not respond or was drained",
    "replica",
)
REPLICA_REFUSED = counter(
    "replica_refused_connections",
    "connections of peers without a key of the fleet that this replica on another machine has refused",
    "replica",
    "reason",
)

TASKS = gauge("asyncio_tasks", "asyncio tasks of the front end: a few, plus some for each request")
STARTUP = gauge(
    "startup_seconds", "time spent in the latest engine start of the first replica, by phase", "phase"
)
BUILD = gauge(
    "build_info",
    "always 1; the labels identify what is running",
    "version",
    "device",
    "dtype",
    "system_fingerprint",
)

KEY_METRICS: tuple[Metric, ...] = (
    KEY_REQUESTS,
    KEY_PROMPT_TOKENS,
    KEY_GENERATION_TOKENS,
    KEY_REJECTED,
    KEY_IN_FLIGHT,
)
REPLICA_METRICS: tuple[Metric, ...] = (
    REPLICA_STATE,
    REPLICA_RUNNING,
    REPLICA_WAITING,
    REPLICA_KV_USE,
    REPLICA_BUSY,
    REPLICA_TOKENS,
    REPLICA_PREFIX_QUERIES,
    REPLICA_PREFIX_HITS,
    REPLICA_PREEMPTIONS,
    REPLICA_RESTARTS,
    REPLICA_SUSPICIONS,
    REPLICA_MOVES_IN,
    REPLICA_MOVES_OUT,
    REPLICA_REFUSED,
)
METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS,
    FINISHED,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    *KEY_METRICS,
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
    QUEUE_SECONDS,
    MAX_QUEUED,
    MAX_QUEUED_TOKENS,
    KV_USE,
    KV_FILLED,
    READY,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PREEMPTIONS,
    DRAFTED,
    ACCEPTED,
    STEP_TIME,
    ENGINE_RESTARTS,
    MOVES,
    AUDITED,
    AUDIT_MISMATCHES,
    *REPLICA_METRICS,
    TASKS,
    STARTUP,
    BUILD,
)
