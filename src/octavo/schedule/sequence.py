"""One choice of one request, as the scheduler sees it."""

from enum import Enum

from octavo.cache import BlockTable
from octavo.protocol import GenerateRequest, PrefillChunk, Timings

MAX_CHUNKS = 256  # prefill chunks recorded per sequence; more are only counted


class SequenceStatus(Enum):
    WAITING = "waiting"  # in the queue, or parked behind its leader
    RUNNING = "running"  # has a slot and blocks
    FINISHED = "finished"  # its terminal output is written


class Sequence:
    """Mutated by the Scheduler only (its `block_table` by KVManager).

        token_ids   |  prompt  |  resumed and sampled  |
                    0 ...... num_computed ...... len(token_ids)
                    |  KV exists   |     pending      |

    There are no phases: a step computes some pending tokens. A new prompt, a prefix hit, a resumed
    sequence and a decode differ only in how many are pending.
    """

    __slots__ = (
        "admitted_at",
        "block_table",
        "blocks_needed",
        "chunks",
        "first_token_at",
        "followers",
        "key",
        "num_cached",
        "num_chunks",
        "num_computed",
        "num_passed_over",
        "num_preemptions",
        "num_prompt",
        "num_scored",
        "request",
        "slot",
        "status",
        "stop_length",
        "token_ids",
    )

    def __init__(self, request: GenerateRequest, order: int, max_model_len: int) -> None:
        max_tokens = request.params.max_tokens
        assert max_tokens is not None, "intake sets max_tokens"
        self.request = request
        self.key = (request.priority, order)  # the order in which sequences are served; never changes
        self.token_ids = [*request.prompt_ids, *request.resume_ids]
        self.num_prompt = len(request.prompt_ids)
        self.stop_length = min(self.num_prompt + max_tokens, max_model_len)
        self.num_computed = 0
        self.num_cached = 0
        self.num_scored = 0  # prompt logprobs delivered
        self.num_preemptions = 0
        self.num_passed_over = 0  # steps between two tokens of this sequence that computed only others
        self.block_table: BlockTable | None = None
        self.blocks_needed = 0  # for admission, as of the last attempt
        self.slot = -1
        self.status = SequenceStatus.WAITING
        self.followers: list[Sequence] = []  # other choices, waiting for this one to compute the prompt
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.chunks: list[PrefillChunk] = []
        self.num_chunks = 0  # including those that are not recorded

    @property
    def needs_prompt_scores(self) -> bool:
        return self.request.params.prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    def record_chunk(self, start: int, num_tokens: int, seconds: float) -> None:
        self.num_chunks += 1
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(PrefillChunk(start, num_tokens, seconds))

    def timings(self, now: float) -> Timings:
        arrival = self.request.arrival
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timings(
            queue=admitted - arrival,
            prefill=first - admitted,
            decode=now - first,
            chunks=tuple(self.chunks),
            num_chunks_left_out=self.num_chunks - len(self.chunks),
            num_passed_over=self.num_passed_over,
        )
