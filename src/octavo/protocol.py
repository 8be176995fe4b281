"""Messages between the front end (text) and the engine (tokens).

Frozen structs, token ids only. Nothing here knows torch, a tokenizer or a socket.
"""

from enum import StrEnum

import msgspec

from octavo.checks import NO_BOUND, check_flag, check_ids, check_integer, check_number
from octavo.errors import GrammarError, RequestError

# Of the fields of `SamplingParams`, from the smallest value that is allowed to the largest.
NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),  # but not 0
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
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the client went away
    DEADLINE = "deadline"  # the request's deadline passed
    ERROR = "error"  # this request alone failed; `TokenOutput.failure` says how


class FailureCode(StrEnum):
    """What a front end decides by. The message beside it is for people, and nothing compares it."""

    ENGINE_FAILED = "engine_failed"  # the engine did not compute the request, or there is no engine
    GRAMMAR_TOO_COMPLEX = "grammar_too_complex"  # the grammar cannot be followed to the end of the answer


class Failure(msgspec.Struct, frozen=True):
    """Why one request ended with `FinishReason.ERROR`."""

    code: FailureCode
    message: str  # for the person who sent the request


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # `text` is the schema, as JSON
    JSON_OBJECT = "json_object"  # any JSON object; `text` is empty
    REGEX = "regex"  # the whole answer matches it
    CHOICE = "choice"  # `text` is a JSON list of strings, of which the answer is one
    LARK = "lark"  # a context-free grammar in llguidance's dialect of Lark
    CALLS = "calls"  # the same, made by `dialect.call_grammar` from schemas that were checked


class GrammarSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer must conform to. Checked by `octavo.grammar` before it comes to an engine.

    Two specs are the same grammar if they are equal, so it is the key of every cache of compiled ones.
    """

    kind: GrammarKind
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a request may ask of sampling.

    It checks itself when it is made: a value that no model and no server would take raises a `RequestError`.
    What depends on the model and on the server's limits is checked by `frontend.intake`, which also sets the
    seed.
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
    logprobs: int | None = None  # None: none; k: the chosen token's and the k best
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None  # None: any text

    def __post_init__(self) -> None:
        for name, (low, high) in NUMBERS.items():
            check_number(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise RequestError(
                "top_p must be above 0; for the best token only, set temperature to 0", "top_p"
            )
        for name, (smallest, largest) in WHOLE_NUMBERS.items():
            check_integer(name, getattr(self, name), smallest, largest, optional=name in MAY_BE_NONE)
        for name in FLAGS:
            check_flag(name, getattr(self, name))
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), tuple | list):
                raise RequestError(f"{name} must be a tuple: write (x,) for a single one", name)
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise RequestError("a stop string is a string that is not empty", "stop")
        check_ids("stop_token_ids", self.stop_token_ids)
        if not isinstance(self.logit_bias, dict):
            raise RequestError("logit_bias must be a dict of token id to number", "logit_bias")
        check_ids("logit_bias", self.logit_bias)
        for value in self.logit_bias.values():
            check_number("logit_bias", value, *LOGIT_BIAS)
        if self.grammar is not None:  # the grammar itself is checked by `grammar.checker`
            if not isinstance(self.grammar, GrammarSpec):
                raise GrammarError("grammar must be a GrammarSpec: a kind and a text")
            if self.min_tokens > 0 or self.ignore_eos:
                raise GrammarError(
                    "a grammar says where an answer may end: leave out min_tokens and ignore_eos"
                )


# The least log-probability: of a token that the model rules out, as in OpenAI's API. JSON has no infinity.
LOGPROB_FLOOR = -9999.0


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one token under the model itself: before penalties, grammar and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # best first


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """One choice of one request; n > 1 is n of these with the same `request_id`."""

    request_id: str
    choice: int = 0
    prompt_ids: tuple[int, ...]
    params: SamplingParams  # params.seed and params.max_tokens are set
    stop_ids: tuple[int, ...] = ()  # end-of-sequence (unless ignored) and stop_token_ids
    priority: int = 0  # smaller is more urgent
    arrival: float = 0.0
    deadline: float | None = None
    cache_salt: str = ""  # prefixes are shared within a salt only
    resume_ids: tuple[int, ...] = ()  # tokens already emitted before a crash


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str
    choice: int | None = None  # None: every choice


class PrefillChunk(msgspec.Struct, frozen=True):
    """A run of a sequence's tokens that one step computed at once."""

    start: int  # position of the first
    num_tokens: int
    seconds: float  # of the whole step, which others may have shared


class Timings(msgspec.Struct, frozen=True):
    """Seconds a sequence spent; preempted time counts where it fell."""

    queue: float
    prefill: float
    decode: float
    chunks: tuple[PrefillChunk, ...] = ()  # the first ones, with those that a preemption made necessary
    num_chunks_left_out: int = 0
    num_passed_over: int = 0  # steps between two tokens of this sequence that computed others only


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step gave one sequence. The last one has `finish`; nothing follows it."""

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked for
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of positions 1, 2, ...; in order, over several outputs
    finish: FinishReason | None = None
    num_cached: int = 0  # prompt tokens found in the prefix cache
    num_preemptions: int = 0
    timings: Timings | None = None  # with `finish`
    failure: Failure | None = None  # with the finish reason `ERROR`

    @classmethod
    def of_refused(cls, request: GenerateRequest, reason: str) -> "TokenOutput":
        """The only output of a request that never began."""
        return cls(
            request_id=request.request_id,
            choice=request.choice,
            finish=FinishReason.ERROR,
            timings=Timings(0.0, 0.0, 0.0),
            failure=Failure(FailureCode.ENGINE_FAILED, reason),
        )


class EngineOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """One message per step."""

    outputs: tuple[TokenOutput, ...]
    stats: "EngineStats"


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of the engine after a step; counters never fall."""

    num_running: int
    num_waiting: int
    pages_total: int
    pages_free: int
    pages_cached: int  # in the prefix tree, whether in use or not
    pages_idle: int = 0  # of them, those that no sequence holds
    steps: int
    tokens_computed: int
    prompt_tokens: int  # of admitted requests
    prompt_tokens_cached: int
    tokens_sampled: int
    preemptions: int
    step_seconds: float = 0.0  # in all steps


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine that is ready says of itself."""

    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    device: str
    dtype: str
    explanation: tuple[str, ...]  # how the KV cache got its size
    kv_bytes: int  # of the KV cache
    weight_bytes: dict[str, int] = {}  # in memory, by the form they are stored in: Q4_K, bfloat16, ...
    system_fingerprint: str  # of everything numeric: equal ones answer a request alike, bit for bit


class KernelTime(msgspec.Struct, frozen=True):
    """The calls of one kind of kernel, and how long their callers waited for them."""

    seconds: float
    calls: int

    def __sub__(self, earlier: "KernelTime") -> "KernelTime":
        return KernelTime(self.seconds - earlier.seconds, self.calls - earlier.calls)


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where a native engine's time went since it was opened. The rest of a step's time is Python's."""

    gemm: KernelTime
    attention: KernelTime  # with the writing of keys and values
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


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The answer to `Hello`, once the engine can take requests."""

    facts: EngineFacts
    stats: EngineStats
