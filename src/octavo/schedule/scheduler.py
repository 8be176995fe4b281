"""The scheduler: which tokens of which sequences the next step computes.

Sequences are served in the order of (tenant, priority, arrival), running and waiting ones in one merged walk,
until the token budget of the step is used up. `tenant_queues` orders the tenants by the service that each
has received:

1. A running sequence gets its pending tokens, or a chunk of them. A sequence with one pending token (a
   decode) always gets it: the chunks of others leave enough of the budget, so that streams do not stall.
   This requires a budget of at least `max_running`, which the options ensure.
2. If blocks run out, the last running sequence in the order is preempted. It is always behind the one being
   served, so nothing already planned is undone. If none is behind, the sequence waits for the next step.
3. A waiting sequence is admitted if there is a slot and its whole prompt fits, with one spare block for each
   running sequence. To make room, it may preempt sequences of lower *priority* or of tenants above their
   share (see `tenant_queues`), but not those that are only newer. If the first in the order cannot be
   admitted, none behind it is, so no request starves.
4. A sequence whose grammar is late (as the worker reported) is skipped. It keeps its slot and its blocks.
5. What is left of the budget may be used for drafts: see `drafts`.

The first in the order can always continue: it may preempt all others, and alone it fits. So every step makes
progress. A preempted sequence keeps its place among those of its tenant, and reuses its full blocks from the
prefix tree unless they were evicted meanwhile. A tenant is not charged for computing tokens again.

The cost of a step is proportional to running sequences, tenants, computed tokens and moved blocks, never to
the length of the queue or the number of blocks. Nothing here reads a clock, draws a random number or iterates
over a set: the plan is a function of the calls so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.cache import KVManager
from octavo.drafting.proposer import Speculation
from octavo.errors import RequestError
from octavo.lazy_heap import LazyHeap
from octavo.plan import SequenceSlice, SliceResult, SlotOpening, StepPlan, StepResult
from octavo.protocol import EngineStats, Failure, FinishReason, GenerateRequest, TokenLogprob, TokenOutput
from octavo.schedule.counters import Counters
from octavo.schedule.drafts import Drafts
from octavo.schedule.policy import AdmissionPolicy, SchedulerConfig
from octavo.schedule.sequence import Sequence, SequenceStatus, TenantQueue
from octavo.schedule.tenant_queues import TenantQueues


@dataclass
class StepRoom:
    """What is left of a step while it is planned."""

    budget: int  # tokens
    reserved: int  # of these, for decodes that are not planned yet
    admits: bool  # whether waiting sequences may still be admitted
    newest: Sequence | None = None  # admitted last


class Scheduler:
    """Owns the sequences. Calls alternate: any number of `add` and `abort`, then `schedule`, then `apply`."""

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, speculation: Speculation | None = None
    ) -> None:
        self.config = config
        self.kv = kv
        self.counters = Counters()
        self._drafts = Drafts(config, kv, speculation)
        self._step_began = 0.0
        self._order = 0
        self._requests: dict[str, dict[int, Sequence]] = {}  # unfinished, by request id and choice
        self._queues = TenantQueues(config.max_running)
        self._deadlines: LazyHeap[Sequence] = LazyHeap(
            lambda sequence: sequence.status is not SequenceStatus.FINISHED
        )
        self._num_waiting = 0
        self._free_slots = list(range(config.max_running - 1, -1, -1))
        self._closed_slots: list[int] = []
        self._late: set[int] = set()  # slots that cannot sample a token yet, as the worker last reported
        self._in_flight: list[Sequence] = []  # one per slice of the plan that is being executed
        self._outbox: list[TokenOutput] = []
        self.preempted: list[int] = []  # slots, since the start of the last plan; for views

    # -- events ---------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, now: float) -> None:
        choices = self._requests.get(request.request_id, {})
        if request.choice in choices:
            raise RequestError(f"request id {request.request_id!r} is already in use", "request_id")
        sequence = Sequence(request, self._order, self.config.max_model_len)
        self._check_fits(sequence)
        self._order += 1
        self._queues.add(sequence)
        self._requests.setdefault(request.request_id, choices)[request.choice] = sequence
        self._num_waiting += 1
        if request.deadline is not None:
            self._deadlines.push(request.deadline, sequence)
        ended = request.resume_ids and sequence.finish_reason(request.resume_ids[-1])
        if ended:
            self._finish(sequence, ended, now)
            return
        leader = next((other for other in choices.values() if other.first_token_at is None), sequence)
        if leader is not sequence and self._may_follow(sequence):
            leader.followers.append(sequence)  # it will reuse the prompt's blocks in the tree
        else:
            sequence.queue.waiting.push(sequence.key, sequence)

    def abort(self, request_id: str, now: float, choice: int | None = None) -> None:
        """End one choice of a request, or all. Unknown and finished requests are ignored."""
        for sequence in list(self._requests.get(request_id, {}).values()):
            if choice is None or choice == sequence.request.choice:
                self._finish(sequence, FinishReason.ABORT, now)

    def drain(self) -> list[TokenOutput]:
        """Return the outputs since the last call. The last output of every sequence has `finish`."""
        outbox, self._outbox = self._outbox, []
        return outbox

    # -- a step ---------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        assert not self._in_flight, "apply the last plan first"
        self.preempted.clear()
        self._expire(now)
        opened: list[SlotOpening] = []
        slices: list[SequenceSlice] = []
        late, in_flight, counters = self._late, self._in_flight, self.counters
        queues = self._queues.sort()
        running = self._queues.running()
        reserved = sum([len(s.token_ids) - s.num_computed == 1 and s.slot not in late for s in running])
        room = StepRoom(self.config.max_step_tokens, reserved, self._may_admit())
        preemptions = counters.preemptions
        for sequence in self._walk(queues, running, room, now):
            if sequence.slot in late or sequence.slot < 0:  # late, or preempted in this step
                continue
            pending = len(sequence.token_ids) - sequence.num_computed
            is_reserved = False
            if sequence is room.newest:
                opened.append(sequence.opening())
            elif is_reserved := pending == 1:
                room.reserved -= 1
            else:
                pending -= self._adopt(sequence)
            take = 1 if is_reserved else min(pending, room.budget - room.reserved)
            if take > 0 and self._make_room(sequence, sequence.num_computed + take):
                slices.append(sequence.take(take))
                in_flight.append(sequence)
                room.budget -= take
                if room.budget == 0:
                    break
            if counters.preemptions != preemptions:
                room.admits = False  # a sequence was preempted, so no other is admitted now
        if len(slices) + len(late) < self._queues.num_running:
            self._count_passed_over()
        self._drafts.add(slices, in_flight, room.budget, self._queues.num_running)
        counters.steps += 1
        self._step_began = now
        return StepPlan(counters.steps, tuple(self._closed_slots), tuple(opened), tuple(slices))

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply the results of the workers."""
        in_flight, self._in_flight = self._in_flight, []
        kv, counters = self.kv, self.counters
        seconds = now - self._step_began
        counters.step_seconds += seconds
        self._closed_slots.clear()  # the workers have closed them
        self._late = set(result.late)
        for sequence, piece, outcome in zip(in_flight, plan.slices, result.slices, strict=True):
            if outcome.failure is not None:
                # Not committed: KV of this step may be bad, and no other sequence may read it.
                self._finish(sequence, FinishReason.ERROR, now, failure=outcome.failure)
                continue
            num_new, finish = sequence.append(outcome.token_ids)
            # If late, the last known row is computed again, which writes the same KV to the same block.
            computed = piece.start + piece.num_known + outcome.num_accepted - int(outcome.is_late)
            if num_new:  # if it ended with an accepted draft, the KV of that one is not needed
                computed = min(computed, len(sequence.token_ids) - 1)
            sequence.num_computed = computed
            if computed > sequence.num_charged:
                self._queues.charge(sequence, piece.start, computed)
            if piece.num_known > 1 or piece.start < sequence.num_prompt:  # else it is a decode
                sequence.record_chunk(piece.start, piece.num_known, seconds)
            counters.tokens_computed += piece.num_known + outcome.num_drafted
            counters.tokens_drafted += outcome.num_drafted
            counters.tokens_accepted += outcome.num_accepted
            self._drafts.note(sequence, piece, outcome, num_new)
            table = sequence.block_table
            assert table is not None
            if computed >= (table.num_shared + 1) * kv.block_size:
                kv.commit(table, sequence.token_ids, computed)
            if piece.num_sampled or piece.score_ids:
                tokens = outcome.token_ids[:num_new]
                self._emit(sequence, piece, outcome, now, tokens=tokens, finish=finish)
        self._drafts.note_step(plan, result, seconds)

    def lose_step(self) -> None:
        """Discard a plan that was not completed; how much of it the workers executed is unknown.

        All running sequences start again in a new slot, and reuse finished blocks from the tree.
        """
        self._in_flight = []
        for sequence in reversed(self._queues.running()):
            self._preempt(sequence)
        # Slots of the lost plan are closed again, each once.
        self._closed_slots = list(dict.fromkeys(self._closed_slots))

    def _emit(
        self,
        sequence: Sequence,
        piece: SequenceSlice,
        outcome: SliceResult,
        now: float,
        *,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
    ) -> None:
        """Emit the tokens that were appended, and prompt logprobs."""
        scores = outcome.prompt_logprobs
        if scores:  # after a preemption some are computed again
            scores = scores[max(0, sequence.num_scored - piece.start) :]
            sequence.num_scored += len(scores)
        if tokens:
            self.counters.tokens_sampled += len(tokens)
            if sequence.first_token_at is None:
                sequence.first_token_at = now
                self._release_followers(sequence)
        if finish is not None:
            self._finish(sequence, finish, now, outcome=outcome, tokens=tokens, scores=scores)
        elif tokens or scores:
            self._outbox.append(
                TokenOutput(
                    request_id=sequence.request.request_id,
                    choice=sequence.request.choice,
                    attempt=sequence.request.attempt,
                    position=sequence.position_before(tokens, scores),
                    token_ids=tokens,
                    logprobs=outcome.logprobs,
                    prompt_logprobs=scores,
                    num_cached=sequence.num_cached,
                )
            )

    # -- state --------------------------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests) or bool(self._outbox)

    def stats(self) -> EngineStats:
        return self.counters.stats(self._queues.num_running, self._num_waiting, self.kv)

    def running(self) -> list[Sequence]:
        """Return the running sequences in serving order. Read-only."""
        return self._queues.running()

    def queues(self) -> list[TenantQueue]:
        """Return the queues in serving order. They do not contain followers of another choice. Read-only."""
        return self._queues.in_order()

    def check(self) -> None:
        """Assert every invariant of scheduler and cache. For tests, simulation and idle time."""
        running = self._queues.running()
        for queue in self._queues.in_order():
            keys = [s.key for s in queue.running]
            assert keys == sorted(keys), "running sequences are out of order"
        num_running = num_waiting = 0
        for choices in self._requests.values():
            for sequence in choices.values():
                if sequence.status is SequenceStatus.RUNNING:
                    num_running += 1
                else:
                    num_waiting += 1
                    assert sequence.status is SequenceStatus.WAITING, "a finished sequence is kept"
                    assert sequence.block_table is None, "a waiting sequence holds blocks"
                    assert sequence.slot == -1, "a waiting sequence holds a slot"
        assert num_running == len(running) == self._queues.num_running, "a running sequence is lost"
        assert num_waiting == self._num_waiting, "waiting is miscounted"
        slots = self._free_slots + [s.slot for s in running]
        slots.sort()
        assert slots == list(range(self.config.max_running)), "slots lost or owned twice"
        live = []
        for sequence in running:
            table = sequence.block_table
            assert table is not None
            held = len(table.block_ids) * self.kv.block_size
            assert sequence.num_computed <= min(held, len(sequence.token_ids)), "computed without blocks"
            live.append(table)
        self.kv.check(live)

    # -- parts of the walk ----------------------------------------------------------------------------------

    def _may_admit(self) -> bool:
        return self.config.admission is AdmissionPolicy.CONTINUOUS or not self._queues.num_running

    def _walk(
        self, queues: list[TenantQueue], running: list[Sequence], room: StepRoom, now: float
    ) -> Iterator[Sequence]:
        """Yield the sequences in serving order, and admit waiting ones on the way.

        `running` are those that run before the step, in the same order. Some may be preempted meanwhile.
        """
        num_served = 0  # of these
        for queue in queues:
            if not room.admits:  # most steps of a busy engine
                break
            num_served += len(queue.running)
            index = 0
            while room.admits and (head := queue.waiting.peek()) is not None:
                place = queue.place_of(head)
                yield from queue.running[index:place]
                index = place
                if room.admits:
                    room.admits = room.budget > room.reserved and self._admit(head, now)
                if room.admits:
                    room.newest = head
                    index += 1
                    yield head
            yield from queue.running[index:]
        yield from running[num_served:]

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Give the head of a queue a slot and its shared blocks. Return False if there is no room."""
        if not self._free_slots and not self._preempt_for(sequence):
            return False
        kv = self.kv
        if self._lacks_blocks(sequence) and not self._can_gain_blocks(sequence):
            return False  # by the last attempt's count; a lookup in the tree would cost a whole prompt
        table = kv.begin(
            sequence.token_ids, sequence.request.cache_salt, reuse=not sequence.needs_prompt_scores
        )
        sequence.blocks_needed = kv.blocks_for(len(sequence.token_ids)) - len(table.block_ids)
        while self._lacks_blocks(sequence):
            if not (self._can_gain_blocks(sequence) and self._preempt_for(sequence)):
                kv.release(table)
                return False
        sequence.queue.waiting.pop()
        self._num_waiting -= 1
        sequence.block_table = table
        sequence.slot = self._free_slots.pop()
        sequence.status = SequenceStatus.RUNNING
        self._queues.start(sequence)
        sequence.num_computed = table.num_shared * kv.block_size
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self.counters.prompt_tokens += sequence.num_prompt
            self._count_cached(sequence, sequence.num_computed)
        return True

    def _may_follow(self, sequence: Sequence) -> bool:
        """Whether the sequence should wait until another choice has computed the prompt."""
        is_continuous = self.config.admission is AdmissionPolicy.CONTINUOUS
        return is_continuous and self.kv.tree is not None and not sequence.needs_prompt_scores

    def _lacks_blocks(self, sequence: Sequence) -> bool:
        """Whether its prompt plus one block per running sequence does not fit. Alone, every sequence fits."""
        margin = self._queues.num_running
        return margin > 0 and sequence.blocks_needed + margin > self.kv.num_available

    def _can_gain_blocks(self, sequence: Sequence) -> bool:
        """Whether preempting everything that may be preempted for it would free enough blocks."""
        lacking = sequence.blocks_needed + self._queues.num_running - self.kv.num_available
        if lacking > 0:
            for other in self._queues.victims(sequence):
                assert other.block_table is not None
                lacking -= len(other.block_table.block_ids)
                if lacking <= 0:
                    break
        return lacking <= 0

    def _adopt(self, sequence: Sequence) -> int:
        """Reuse blocks that others computed since admission. Return the number of tokens gained."""
        assert sequence.block_table is not None
        if sequence.needs_prompt_scores:
            return 0
        gained = self.kv.adopt(sequence.block_table, sequence.token_ids, sequence.num_computed)
        of_prompt = min(gained, sequence.num_prompt - sequence.num_computed)
        sequence.num_computed += gained
        if of_prompt > 0 and sequence.num_preemptions == 0:
            self._count_cached(sequence, of_prompt)
        return gained

    def _count_passed_over(self) -> None:
        """Count this step for running sequences that have begun to stream and got no token in it."""
        exempt = {sequence.slot for sequence in self._in_flight} | self._late
        for sequence in self._queues.running():
            if sequence.first_token_at is not None and sequence.slot not in exempt:
                sequence.num_passed_over += 1

    def _count_cached(self, sequence: Sequence, tokens: int) -> None:
        tokens = min(tokens, sequence.num_prompt - sequence.num_cached)
        sequence.num_cached += tokens
        self.counters.prompt_tokens_cached += tokens

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        table = sequence.block_table
        assert table is not None
        while not self.kv.grow(table, num_tokens):
            victim = self._queues.last_running()
            if victim is sequence:
                return False
            self._preempt(victim)
        return True

    # -- endings --------------------------------------------------------------------------------------------

    def _check_fits(self, sequence: Sequence) -> None:
        capacity = self.kv.pool.num_total * self.kv.block_size
        if not sequence.token_ids:
            raise RequestError("the prompt is empty: send at least one token", "prompt")
        if sequence.num_prompt >= self.config.max_model_len or sequence.stop_length > capacity:
            raise RequestError(
                f"This model's maximum context length is {min(self.config.max_model_len, capacity)} tokens; "
                f"the prompt has {sequence.num_prompt} and up to {sequence.request.params.max_tokens} more "
                "were requested. Shorten the prompt or lower max_tokens.",
                "prompt",
            )

    def _expire(self, now: float) -> None:
        while (sequence := self._deadlines.peek()) is not None:
            deadline = sequence.request.deadline
            if deadline is None or deadline > now:
                return
            self._finish(sequence, FinishReason.DEADLINE, now)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        outcome: SliceResult | None = None,
        tokens: tuple[int, ...] = (),
        scores: tuple[TokenLogprob, ...] = (),
        failure: Failure | None = None,
    ) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._release_slot(sequence)
        else:
            self._num_waiting -= 1
        sequence.status = SequenceStatus.FINISHED
        self._release_followers(sequence)
        self._queues.remove(sequence)
        drafts = sequence.drafts
        request = sequence.request
        choices = self._requests[request.request_id]
        del choices[request.choice]
        if not choices:
            del self._requests[request.request_id]
        self._outbox.append(
            TokenOutput(
                request_id=request.request_id,
                choice=request.choice,
                attempt=request.attempt,
                position=sequence.position_before(tokens, scores),
                token_ids=tokens,
                logprobs=outcome.logprobs[: len(tokens)] if outcome else (),
                prompt_logprobs=scores,
                finish=reason,
                num_cached=sequence.num_cached,
                num_preemptions=sequence.num_preemptions,
                num_drafted=drafts.num_drafted if drafts else 0,
                num_accepted=drafts.num_accepted if drafts else 0,
                timings=sequence.timings(now),
                failure=failure,
            )
        )
        if failure is None:
            self._drafts.close(sequence)
        sequence.drafts = None  # the heap of deadlines may keep the sequence for an hour

    def _release_followers(self, leader: Sequence) -> None:
        followers, leader.followers = leader.followers, []
        for sequence in followers:
            if sequence.status is SequenceStatus.WAITING:
                sequence.queue.waiting.push(sequence.key, sequence)

    def _release_slot(self, sequence: Sequence) -> None:
        """Release the slot and the blocks of a running sequence."""
        assert sequence.block_table is not None
        self._queues.stop(sequence)
        self.kv.release(sequence.block_table)
        self._free_slots.append(sequence.slot)
        self._closed_slots.append(sequence.slot)
        self._late.discard(sequence.slot)
        sequence.block_table, sequence.slot, sequence.num_computed = None, -1, 0

    def _preempt(self, sequence: Sequence) -> None:
        self.preempted.append(sequence.slot)
        self._release_slot(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.counters.preemptions += 1
        self._num_waiting += 1
        sequence.queue.waiting.push(sequence.key, sequence)

    def _preempt_for(self, sequence: Sequence) -> bool:
        """Preempt one running sequence to admit this one. Return False if none may be preempted for it."""
        victim = next(self._queues.victims(sequence), None)
        if victim is None:
            return False
        self._preempt(victim)
        return True
