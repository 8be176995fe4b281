"""One choice of one request, as the scheduler sees it, and the queue of its tenant."""

from bisect import bisect_left
from enum import Enum
from operator import attrgetter

import msgspec

from octavo.cache import BlockTable
from octavo.fairness.accounts import Account
from octavo.lazy_heap import LazyHeap
from octavo.plan import SequenceSlice, SlotOpening
from octavo.protocol import FinishReason, GenerateRequest, PrefillChunk, Timings, TokenLogprob
from octavo.schedule.sequence_drafts import SequenceDrafts

by_key = attrgetter("key")

MAX_CHUNKS = 256  # prefill chunks recorded per sequence; more are only counted


class SequenceStatus(Enum):
    WAITING = "waiting"  # in the queue, or parked behind its leader
    RUNNING = "running"  # has a slot and blocks
    FINISHED = "finished"  # its terminal output is written


class Sequence:
    """Mutated by the Scheduler only (its `block_table` by KVManager, its `drafts` by Drafts).

        token_ids   |  prompt  |  resumed and sampled  |
                    0 ...... num_computed ...... len(token_ids)
                    |  KV exists   |     pending      |

    There are no phases: a step computes some pending tokens. A new prompt, a prefix hit, a resumed
    sequence and a decode differ only in how many are pending. Drafts are in a slice only, never here.
    """

    __slots__ = (
        "admitted_at",
        "block_table",
        "blocks_needed",
        "chunks",
        "drafts",
        "first_token_at",
        "followers",
        "key",
        "num_cached",
        "num_charged",
        "num_chunks",
        "num_computed",
        "num_passed_over",
        "num_preemptions",
        "num_prompt",
        "num_scored",
        "queue",
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
        self.key = (request.priority, order)  # its place among those of its tenant; never changes
        self.queue: TenantQueue  # set by TenantQueues
        self.token_ids = [*request.prompt_ids, *request.resume_ids]
        self.num_prompt = len(request.prompt_ids)
        self.stop_length = min(self.num_prompt + max_tokens, max_model_len)
        self.num_computed = 0
        self.num_cached = 0
        self.num_charged = 0  # end of the tokens that its tenant was charged for
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
        self.drafts: SequenceDrafts | None = None
        self.num_chunks = 0  # including those that are not recorded

    @property
    def needs_prompt_scores(self) -> bool:
        return self.request.params.prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    def opening(self) -> SlotOpening:
        """Return what the workers need to know about it when it gets a slot."""
        request = self.request
        return SlotOpening(
            self.slot,
            request.params,
            request.choice,
            request.stop_ids,
            self.num_prompt,
            tuple(self.token_ids),
            request.request_id,
        )

    def take(self, num_tokens: int) -> SequenceSlice:
        """Return the slice of the next tokens, with the blocks that the workers do not know yet."""
        start, end = self.num_computed, self.num_computed + num_tokens
        tokens = self.token_ids
        num_sent, block_ids = self._send_blocks()
        score_ids: tuple[int, ...] = ()
        if start < self.num_prompt and self.needs_prompt_scores:
            score_ids = tuple(tokens[start + 1 : min(end + 1, self.num_prompt)])
        return SequenceSlice(
            self.slot,
            start,
            tuple(tokens[start:end]),
            num_sent,
            block_ids,
            1 if end == len(tokens) else 0,
            score_ids,
        )

    def with_drafts(self, piece: SequenceSlice, drafted: tuple[int, ...]) -> SequenceSlice:
        """Return its slice with drafts at the end, whose blocks are in the table."""
        _, block_ids = self._send_blocks()
        piece = piece.with_drafts(drafted)
        return msgspec.structs.replace(piece, block_ids=piece.block_ids + block_ids)

    def with_grant(self, piece: SequenceSlice, num_granted: int) -> SequenceSlice:
        """Return its slice with room for drafts of the worker, whose blocks are in the table."""
        _, block_ids = self._send_blocks()
        return msgspec.structs.replace(piece, block_ids=piece.block_ids + block_ids, num_granted=num_granted)

    def _send_blocks(self) -> tuple[int, tuple[int, ...]]:
        """Return how many blocks the workers know, and the others, which they get with this slice."""
        table = self.block_table
        assert table is not None
        num_sent = table.num_sent
        table.num_sent = len(table.block_ids)
        return num_sent, tuple(table.block_ids[num_sent:])

    def append(self, token_ids: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Append tokens up to the one that ends it. Return how many, and why it ends."""
        for number, token in enumerate(token_ids, 1):
            self.token_ids.append(token)
            reason = self.finish_reason(token)
            if reason is not None:
                return number, reason
        return len(token_ids), None

    def position_before(self, tokens: tuple[int, ...], scores: tuple[TokenLogprob, ...]) -> int:
        """Return the position of an output, after its tokens and prompt logprobs were counted."""
        return len(self.token_ids) - self.num_prompt - len(tokens) + self.num_scored - len(scores)

    def finish_reason(self, token: int) -> FinishReason | None:
        """Return why it ends with `token`, its last one; None if it does not end."""
        length = len(self.token_ids)
        request = self.request
        if token in request.stop_ids and length - self.num_prompt >= request.params.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.stop_length else None

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


class TenantQueue:
    """The unfinished sequences of one tenant at one rank. Changed by `TenantQueues` and the Scheduler."""

    __slots__ = ("account", "num_unfinished", "rank", "running", "waiting")

    def __init__(self, account: Account, rank: int) -> None:
        self.account = account
        self.rank = rank
        self.num_unfinished = 0
        self.waiting: LazyHeap[Sequence] = LazyHeap(
            lambda sequence: sequence.status is SequenceStatus.WAITING
        )
        self.running: list[Sequence] = []  # sorted by key

    def place_of(self, sequence: Sequence) -> int:
        """Return its index in `running`, or where it would be."""
        return bisect_left(self.running, sequence.key, key=by_key)
