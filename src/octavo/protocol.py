"""Messages between the front end (text) and the engine (tokens).

Frozen structs, token ids only. Nothing here depends on torch, a tokenizer or a socket.
"""

from enum import StrEnum

import msgspec

from octavo.checks import NO_BOUND, check_flag, check_ids, check_integer, check_number
from octavo.errors import GrammarError, RequestError

# Minimum and maximum of the fields of `SamplingParams`.
NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),  # 0 excluded
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
WHOLE_NUMBERS = {
    "top_k": (0, NO_BOUND),
    "n": (1, NO_BOUND),
    "min_tokens": (0, NO_BOUND),
    "max_tokens": (1, NO_BOUND),
    "seed": (-(1 << 63), (1 << 64) - 1),
    "logprobs": (0, NO_BOUND),
    "prompt_logprobs": (0, NO_BOUND),
}
MAY_BE_NONE = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
FLAGS = ("include_stop", "ignore_eos", "skip_special_tokens")
LOGIT_BIAS = (-100.0, 100.0)


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token, or (decided by the front end) a stop string
    LENGTH = "length"  # max_tokens is reached, or the context is full
    ABORT = "abort"  # aborted by the caller, or the client disconnected
    DEADLINE = "deadline"  # the request's deadline passed
    ERROR = "error"  # only this request failed; `TokenOutput.failure` has the reason


class FailureCode(StrEnum):
    """The kind of failure, for programs. The message of a `Failure` is for people and is never compared."""

    ENGINE_FAILED = "engine_failed"  # the engine could not compute the request, or there is no engine
    GRAMMAR_TOO_COMPLEX = "grammar_too_complex"  # the grammar could not be followed to the end of the answer


class Failure(msgspec.Struct, frozen=True):
    """Why one request ended with `FinishReason.ERROR`."""

    code: FailureCode
    message: str  # for the sender of the request


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # `text` is the schema, as JSON
    JSON_OBJECT = "json_object"  # any JSON object; `text` is empty
    REGEX = "regex"  # `text` is a regular expression that the whole answer matches
    CHOICE = "choice"  # `text` is a JSON list of strings; the answer is one of them
    LARK = "lark"  # a context-free grammar in llguidance's dialect of Lark
    CALLS = "calls"  # Lark, made by `dialect.call_grammar` from checked schemas


class GrammarSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grammar that an answer must conform to. `octavo.grammar` checks it before the engine gets it.

    Equal specs are the same grammar, so a spec is the key in caches of compiled grammars.
    """

    kind: GrammarKind
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters of a request.

    The constructor raises `RequestError` for values that are never valid. `frontend.intake` checks what
    depends on the model and the server's limits, and sets the seed.
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    include_stop: bool = False  # keep the stop string in the text
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None  # None: no logprobs; k: of the chosen token and the k most likely ones
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None  # None: any text

    def __post_init__(self) -> None:
        for name, (low, high) in NUMBERS.items():
            check_number(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0; for greedy decoding, set temperature to 0", "top_p")
        for name, (smallest, largest) in WHOLE_NUMBERS.items():
            check_integer(name, getattr(self, name), smallest, largest, optional=name in MAY_BE_NONE)
        for name in FLAGS:
            check_flag(name, getattr(self, name))
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), tuple | list):
                raise RequestError(f"{name} must be a tuple: write (x,) for a single value", name)
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise RequestError("a stop string must be a string and must not be empty", "stop")
        check_ids("stop_token_ids", self.stop_token_ids)
        if not isinstance(self.logit_bias, dict):
            raise RequestError("logit_bias must be a dict from token ids to numbers", "logit_bias")
        check_ids("logit_bias", self.logit_bias)
        for value in self.logit_bias.values():
            check_number("logit_bias", value, *LOGIT_BIAS)
        if self.grammar is not None:  # the grammar itself is checked by `grammar.checker`
            if not isinstance(self.grammar, GrammarSpec):
                raise GrammarError("grammar must be a GrammarSpec: a kind and a text")
            if self.min_tokens > 0 or self.ignore_eos:
                raise GrammarError(
                    "the grammar determines where an answer may end: remove min_tokens and ignore_eos"
                )


UNKNOWN_POSITION = -1  # in outputs that are not from an engine, or from one with protocol version 1

# The minimum log-probability, for tokens that the model excludes, as in OpenAI's API. JSON has no infinity.
LOGPROB_FLOOR = -9999.0


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one token under the model, before penalties, grammar and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """One choice of one request. With n > 1 there are n of these with the same `request_id`."""

    request_id: str
    choice: int = 0
    prompt_ids: tuple[int, ...]
    params: SamplingParams  # params.seed and params.max_tokens are set
    stop_ids: tuple[int, ...] = ()  # end-of-sequence (unless ignored) and stop_token_ids
    priority: int = 0  # among the requests of its tenant; smaller is more urgent
    tenant: str = ""  # tenants get equal service in proportion to their weights
    weight: float = 1.0
    rank: int = 0  # among all tenants, before their service is compared; smaller is more urgent
    arrival: float = 0.0  # on the clock of the process that has the message; `link.versions` converts it
    deadline: float | None = None  # on the same clock
    cache_salt: str = ""  # prefixes are shared only between requests with the same salt
    resume_ids: tuple[int, ...] = ()  # tokens already emitted by other engines
    attempt: int = 0  # how often the request was sent to an engine before; its outputs repeat it
    waited: float | None = None  # in transit instead of `arrival`: seconds since then
    seconds_left: float | None = None  # in transit instead of `deadline`


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str
    choice: int | None = None  # None: every choice
    attempt: int = 0  # of the request that it aborts


class PrefillChunk(msgspec.Struct, frozen=True):
    """Consecutive tokens of a sequence that one step computed."""

    start: int  # position of the first token
    num_tokens: int
    seconds: float  # duration of the whole step, which may have computed other sequences too


class Timings(msgspec.Struct, frozen=True):
    """Seconds that a sequence spent in each phase. Preempted time counts in the phase where it occurred."""

    queue: float
    prefill: float
    decode: float
    chunks: tuple[PrefillChunk, ...] = ()  # the first ones, including those recomputed after a preemption
    num_chunks_left_out: int = 0
    num_passed_over: int = 0  # steps between two tokens of this sequence that computed only others


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of one step for one sequence. The last output of a sequence has `finish`.

    `attempt` and `position` tell the front end whether this is the next part of the answer. `position` is the
    number of tokens before this output, those in `resume_ids` included, and of prompt logprobs in this
    attempt.
    """

    request_id: str
    choice: int
    attempt: int = 0
    position: int = UNKNOWN_POSITION
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if requested
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of positions 1, 2, ...; in order, over several outputs
    finish: FinishReason | None = None
    num_cached: int = 0  # prompt tokens found in the prefix cache
    num_preemptions: int = 0
    num_drafted: int = 0  # with `finish`: draft tokens that steps computed for it
    num_accepted: int = 0  # with `finish`: of these, the tokens that the model drew, too
    timings: Timings | None = None  # with `finish`
    failure: Failure | None = None  # with the finish reason `ERROR`

    @classmethod
    def of_rejected(cls, request: GenerateRequest, reason: str) -> "TokenOutput":
        """Return the only output of a request that the engine rejected."""
        return cls(
            request_id=request.request_id,
            choice=request.choice,
            attempt=request.attempt,
            position=len(request.resume_ids),
            finish=FinishReason.ERROR,
            timings=Timings(0.0, 0.0, 0.0),
            failure=Failure(FailureCode.ENGINE_FAILED, reason),
        )


class PrefixChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the prefixes in an engine's cache changed. Keys are 64-bit numbers: see `kernels.prefix_index`."""

    sequence: int  # 1, 2, ...
    added: bytes = b""
    removed: bytes = b""


class PrefixList(msgspec.Struct, frozen=True, tag="prefixes"):
    """All prefixes in an engine's cache, as of a change. The answer to `AskPrefixes`."""

    sequence: int  # of the change; 0: before the first one
    keys: bytes


class AskPrefixes(msgspec.Struct, frozen=True, tag="ask_prefixes"):
    """Ask an engine for a `PrefixList`, and for the changes after it."""


class EngineOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """The outputs of one step, in one message."""

    outputs: tuple[TokenOutput, ...]
    stats: "EngineStats"
    num_taken: int = 0  # generation requests that the engine has received from this front end and queued
    prefixes: PrefixChange | None = None  # for a front end that has asked for prefixes


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of the engine after a step. Counters never decrease."""

    num_running: int
    num_waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int  # in the prefix tree, whether in use or not
    blocks_idle: int = 0  # of these, not used by any sequence
    steps: int
    tokens_computed: int
    prompt_tokens: int  # of admitted requests
    prompt_tokens_cached: int
    tokens_sampled: int
    tokens_drafted: int = 0  # by speculative decoding
    tokens_accepted: int = 0  # of these, the tokens that the model drew, too
    preemptions: int
    step_seconds: float = 0.0  # total of all steps
    # Measured, and slowly forgotten. 0: not known yet.
    seconds_per_prompt_token: float = 0.0  # that one more token of a prompt adds to a step
    seconds_per_sequence: float = 0.0  # that one more decoding sequence adds to a step


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of an engine that is ready."""

    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    device: str
    dtype: str
    explanation: tuple[str, ...]  # how the size of the KV cache was chosen
    kv_bytes: int  # of the KV cache
    # Tokens of prompts that a front end may send before the engine begins with them; 0: no limit. What
    # exceeds it waits in the front end, which can still choose another engine for it.
    prompt_credit: int = 0
    has_prefixes: bool = False  # it sends which prefixes are in its cache: see `PrefixChange`
    weight_bytes: dict[str, int] = {}  # in memory, by storage format: Q4_K, bfloat16, ...
    system_fingerprint: str  # equal fingerprints give bit-identical answers to the same request


class KernelTime(msgspec.Struct, frozen=True):
    """The calls of one kind of kernel, and the time that callers waited for them."""

    seconds: float
    calls: int

    def __sub__(self, earlier: "KernelTime") -> "KernelTime":
        return KernelTime(self.seconds - earlier.seconds, self.calls - earlier.calls)


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time spent in native kernels since the start. The rest of a step's time is spent in Python."""

    gemm: KernelTime
    attention: KernelTime  # including writing keys and values
    rows: KernelTime
    sampling: KernelTime

    @property
    def seconds(self) -> float:
        return self.gemm.seconds + self.attention.seconds + self.rows.seconds + self.sampling.seconds

    def __sub__(self, earlier: "KernelTimes") -> "KernelTimes":
        return KernelTimes(
            gemm=self.gemm - earlier.gemm,
            attention=self.attention - earlier.attention,
            rows=self.rows - earlier.rows,
            sampling=self.sampling - earlier.sampling,
        )


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A front end has connected."""

    front_end: str = ""  # its id: an earlier connection of the same front end is over
    version: int = 1  # of the protocol; version 1 did not send it


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The front end of this connection is gone: abort its requests."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The answer to `Hello`, sent when the engine is ready for requests."""

    facts: EngineFacts
    stats: EngineStats
    version: int = 1
