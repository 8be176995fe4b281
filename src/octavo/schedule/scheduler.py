"""Which tokens of which sequences the next step computes.

The algorithm. Sequences are served in the order of (priority, arrival), running and waiting ones in one
merged walk, until the step's token budget is spent:

1. A running sequence gets its pending tokens, or a chunk of them. Every sequence that lacks just one token
   is sure of it: the chunks of others leave that much of the budget. (Somebody is reading along. It needs a
   budget of at least `max_running`, which the options see to.)
2. If pages run out, the running sequence that comes last in the order is preempted. It is always behind the
   one being served, so nothing already planned is taken back. If none is behind, the sequence waits a step.
3. A waiting sequence is admitted if there is a slot and its whole prompt fits, with a page to spare for each
   running one; a more urgent *priority* may preempt for that, mere age may not. If the first in the queue
   cannot be admitted, nobody behind it is: no request starves.
4. A sequence whose grammar is late (the worker says so) is passed over; it keeps its slot and its pages.

The first in the order can always go on: it may preempt all others, and alone it fits. So every step makes
progress. A preempted sequence keeps its place in the order, and finds its full pages again in the prefix tree
unless they were evicted meanwhile.

A step costs time in proportion to running sequences, computed tokens and moved pages; never to the length of
the queue or the number of pages. Nothing here reads a clock, draws a random number or iterates over a set:
the plan is a function of the calls so far.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from octavo.cache import KVManager
from octavo.errors import RequestError
from octavo.plan import SequenceSlice, SliceResult, SlotOpening, StepPlan, StepResult
from octavo.protocol import EngineStats, Failure, FinishReason, GenerateRequest, TokenLogprob, TokenOutput
from octavo.schedule.lazy_heap import Entry, LazyHeap
from octavo.schedule.policy import Admission, SchedulerConfig
from octavo.schedule.sequence import Sequence, Status


@dataclass
class Counters:
    steps: int = 0
    tokens_computed: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    tokens_sampled: int = 0
    preemptions: int = 0
    step_seconds: float = 0.0


class Scheduler:
    """Owns the sequences. Calls alternate: any number of `add` and `abort`, then `schedule`, then `apply`."""

    def __init__(self, config: SchedulerConfig, kv: KVManager) -> None:
        self.config = config
        self.kv = kv
        self.counters = Counters()
        self._step_began = 0.0
        self._order = 0
        self._requests: dict[str, dict[int, Sequence]] = {}  # unfinished, by request id and choice
        self._waiting = LazyHeap(lambda sequence: sequence.status is Status.WAITING)
        self._deadlines = LazyHeap(lambda sequence: sequence.status is not Status.FINISHED)
        self._num_waiting = 0
        self._running: list[Sequence] = []  # sorted by key
        self._free_slots = list(range(config.max_running - 1, -1, -1))
        self._closed_slots: list[int] = []
        self._late: set[int] = set()  # slots that can draw no token yet, as the worker said last
        self._in_flight: list[Sequence] = []  # one per slice of the plan that is being executed
        self._outbox: list[TokenOutput] = []
        self.preempted: list[int] = []  # slots, since the last plan was begun; for those who watch

    # -- events ---------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, now: float) -> None:
        choices = self._requests.get(request.request_id, {})
        if request.choice in choices:
            raise RequestError(f"request id {request.request_id!r} is already in use", "request_id")
        sequence = Sequence(request, self._order, self.config.max_model_len)
        self._check_fits(sequence)
        self._order += 1
        self._requests.setdefault(request.request_id, choices)[request.choice] = sequence
        self._num_waiting += 1
        if request.deadline is not None:
            self._deadlines.push(request.deadline, sequence)
        ended = request.resume_ids and self._finish_reason(sequence, request.resume_ids[-1])
        if ended:
            self._finish(sequence, ended, now)
            return
        leader = next((other for other in choices.values() if other.first_token_at is None), sequence)
        if leader is not sequence and self._may_follow(sequence):
            leader.followers.append(sequence)  # it will find the prompt's pages in the tree
        else:
            self._waiting.push(sequence.key, sequence)

    def abort(self, request_id: str, now: float, choice: int | None = None) -> None:
        """End one choice of a request, or every one; what is unknown or already finished is ignored."""
        for sequence in list(self._requests.get(request_id, {}).values()):
            if choice is None or choice == sequence.request.choice:
                self._finish(sequence, FinishReason.ABORT, now)

    def drain(self) -> list[TokenOutput]:
        """What happened since the last call. Every sequence gets one output with `finish`, its last."""
        outbox, self._outbox = self._outbox, []
        return outbox

    # -- a step ---------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        assert not self._in_flight, "apply the last plan first"
        self.preempted.clear()
        self._expire(now)
        opened: list[SlotOpening] = []
        slices: list[SequenceSlice] = []
        running = self._running
        budget = self.config.max_step_tokens
        late = self._late
        reserved = sum([len(s.token_ids) - s.num_computed == 1 and s.slot not in late for s in running])
        preemptions = self.counters.preemptions
        head = self._waiting.peek() if self._may_admit() else None
        index = 0
        while budget > 0:
            if head is not None and (index == len(running) or head.key < running[index].key):
                if budget <= reserved or not self._admit(head, now):
                    head = None
                    continue
                sequence, head = head, self._waiting.peek()
                opened.append(self._opening(sequence))
                pending = len(sequence.token_ids) - sequence.num_computed
                is_reserved = False
            elif index < len(running):
                sequence = running[index]
                if sequence.slot in late:
                    index += 1
                    continue
                pending = len(sequence.token_ids) - sequence.num_computed
                if is_reserved := pending == 1:
                    reserved -= 1
                else:
                    pending -= self._adopt(sequence)
            else:
                break
            index += 1
            take = 1 if is_reserved else min(pending, budget - reserved)
            if take > 0 and self._make_room(sequence, sequence.num_computed + take):
                slices.append(self._slice(sequence, take))
                self._in_flight.append(sequence)
                budget -= take
            if self.counters.preemptions != preemptions:
                head = None  # pages are so short that one sequence had to yield: nobody else joins now
        if len(slices) + len(late) < len(running):
            self._count_passed_over()
        self.counters.steps += 1
        self._step_began = now
        return StepPlan(self.counters.steps, tuple(self._closed_slots), tuple(opened), tuple(slices))

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Take in what the workers computed."""
        in_flight, self._in_flight = self._in_flight, []
        seconds = now - self._step_began
        self.counters.step_seconds += seconds
        self._closed_slots.clear()  # the workers know
        self._late = set(result.late)
        for sequence, piece, outcome in zip(in_flight, plan.slices, result.slices, strict=True):
            if outcome.failure is not None:
                # Not committed: what this step computed may be bad, and nobody else may ever read it.
                self._finish(sequence, FinishReason.ERROR, now, failure=outcome.failure)
                continue
            num_tokens = len(piece.token_ids)
            # The last row of a late one is computed again, which writes the same to the same page.
            computed = sequence.num_computed = piece.start + num_tokens - int(outcome.is_late)
            if num_tokens > 1 or piece.start < sequence.num_prompt:  # else it is a decode
                sequence.note_chunk(piece.start, num_tokens, seconds)
            self.counters.tokens_computed += num_tokens
            pages = sequence.pages
            assert pages is not None
            if computed >= (pages.num_shared + 1) * self.kv.page_size:
                self.kv.commit(pages, sequence.token_ids, computed)
            if piece.num_sampled or piece.score_ids:
                self._emit(sequence, piece, outcome, now)

    def lose_step(self) -> None:
        """The plan was not carried out to its end, and nobody knows what the workers have seen of it.

        Everything that runs starts over in a fresh slot; finished pages are found again in the tree.
        """
        self._in_flight = []
        for sequence in reversed(self._running[:]):
            self._preempt(sequence)
        # Those of the lost plan are closed again; each once.
        self._closed_slots = list(dict.fromkeys(self._closed_slots))

    def _emit(self, sequence: Sequence, piece: SequenceSlice, outcome: SliceResult, now: float) -> None:
        scores = outcome.prompt_logprobs
        if scores:  # after a preemption some are computed again
            scores = scores[max(0, sequence.num_scored - piece.start) :]
            sequence.num_scored += len(scores)
        finish = None
        tokens = outcome.token_ids
        for number, token in enumerate(tokens, 1):
            sequence.token_ids.append(token)
            finish = self._finish_reason(sequence, token)
            if finish is not None:
                tokens = tokens[:number]
                break
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
                    token_ids=tokens,
                    logprobs=outcome.logprobs,
                    prompt_logprobs=scores,
                    num_cached=sequence.num_cached,
                )
            )

    # -- what an owner may ask ----------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests) or bool(self._outbox)

    def stats(self) -> EngineStats:
        counters = self.counters
        return EngineStats(
            num_running=len(self._running),
            num_waiting=self._num_waiting,
            pages_total=self.kv.pool.num_total,
            pages_free=self.kv.pool.num_free,
            pages_cached=self.kv.num_cached,
            pages_idle=self.kv.num_available - self.kv.pool.num_free,
            steps=counters.steps,
            tokens_computed=counters.tokens_computed,
            prompt_tokens=counters.prompt_tokens,
            prompt_tokens_cached=counters.prompt_tokens_cached,
            tokens_sampled=counters.tokens_sampled,
            preemptions=counters.preemptions,
            step_seconds=counters.step_seconds,
        )

    def running(self) -> list[Sequence]:
        """In the order they are served; to look at only."""
        return self._running[:]

    def queued(self) -> list[Entry]:
        """The queue's heap, without those that wait for another choice's prompt; to look at only."""
        return self._waiting.entries

    def check(self) -> None:
        """Every rule of the scheduler and the cache, asserted. For tests, simulation and idle time."""
        running = self._running
        keys = [s.key for s in running]
        assert keys == sorted(keys), "running sequences are out of order"
        num_running = num_waiting = 0
        for choices in self._requests.values():
            for sequence in choices.values():
                if sequence.status is Status.RUNNING:
                    num_running += 1
                else:
                    num_waiting += 1
                    assert sequence.status is Status.WAITING, "a finished sequence is kept"
                    assert sequence.pages is None, "a waiting sequence holds pages"
                    assert sequence.slot == -1, "a waiting sequence holds a slot"
        assert num_running == len(running), "a running sequence is lost"
        assert num_waiting == self._num_waiting, "waiting is miscounted"
        slots = self._free_slots + [s.slot for s in running]
        slots.sort()
        assert slots == list(range(self.config.max_running)), "slots lost or owned twice"
        live = []
        for sequence in running:
            pages = sequence.pages
            assert pages is not None
            held = len(pages.block_ids) * self.kv.page_size
            assert sequence.num_computed <= min(held, len(sequence.token_ids)), "computed without pages"
            live.append(pages)
        self.kv.check(live)

    # -- parts of the walk ----------------------------------------------------------------------------------

    def _may_admit(self) -> bool:
        return self.config.admission is Admission.CONTINUOUS or not self._running

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Give the head of the queue a slot and the pages it shares; False if there is no room."""
        if not self._free_slots and not self._preempt_less_urgent(sequence):
            return False
        kv = self.kv
        if self._lacks_pages(sequence) and not self._can_gain_pages(sequence):
            return False  # what it lacked last time; cheap, because a walk in the tree costs a whole prompt
        pages = kv.begin(
            sequence.token_ids, sequence.request.cache_salt, reuse=not sequence.needs_prompt_scores
        )
        sequence.pages_wanted = kv.pages_for(len(sequence.token_ids)) - len(pages.block_ids)
        while self._lacks_pages(sequence):
            if not (self._can_gain_pages(sequence) and self._preempt_less_urgent(sequence)):
                kv.release(pages)
                return False
        self._waiting.pop()
        self._num_waiting -= 1
        sequence.pages = pages
        sequence.slot = self._free_slots.pop()
        sequence.status = Status.RUNNING
        insort(self._running, sequence, key=lambda s: s.key)
        sequence.num_computed = pages.num_shared * kv.page_size
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self.counters.prompt_tokens += sequence.num_prompt
            self._count_cached(sequence, sequence.num_computed)
        return True

    def _may_follow(self, sequence: Sequence) -> bool:
        """Whether it pays to wait until another choice has computed the prompt."""
        is_continuous = self.config.admission is Admission.CONTINUOUS
        return is_continuous and self.kv.tree is not None and not sequence.needs_prompt_scores

    def _lacks_pages(self, sequence: Sequence) -> bool:
        """For its whole prompt, and one to spare for each that runs. Alone, every sequence fits."""
        margin = len(self._running)
        return margin > 0 and sequence.pages_wanted + margin > self.kv.num_available

    def _can_gain_pages(self, sequence: Sequence) -> bool:
        """Whether there would be enough if all that is less urgent were preempted."""
        lacking = sequence.pages_wanted + len(self._running) - self.kv.num_available
        for other in reversed(self._running):
            if lacking <= 0 or other.request.priority <= sequence.request.priority:
                break
            assert other.pages is not None
            lacking -= len(other.pages.block_ids)
        return lacking <= 0

    def _adopt(self, sequence: Sequence) -> int:
        """Pages that others computed since this sequence was admitted need not be computed again."""
        assert sequence.pages is not None
        if sequence.needs_prompt_scores:
            return 0
        gained = self.kv.adopt(sequence.pages, sequence.token_ids, sequence.num_computed)
        sequence.num_computed += gained
        if gained and sequence.num_preemptions == 0:
            self._count_cached(sequence, gained)
        return gained

    def _count_passed_over(self) -> None:
        """Somebody reads along with these, and could have had a token."""
        excused = {sequence.slot for sequence in self._in_flight} | self._late
        for sequence in self._running:
            if sequence.first_token_at is not None and sequence.slot not in excused:
                sequence.num_passed_over += 1

    def _count_cached(self, sequence: Sequence, tokens: int) -> None:
        tokens = min(tokens, sequence.num_prompt - sequence.num_cached)
        sequence.num_cached += tokens
        self.counters.prompt_tokens_cached += tokens

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        pages = sequence.pages
        assert pages is not None
        while not self.kv.grow(pages, num_tokens):
            victim = self._running[-1]
            if victim is sequence:
                return False
            self._preempt(victim)
        return True

    def _slice(self, sequence: Sequence, take: int) -> SequenceSlice:
        pages = sequence.pages
        assert pages is not None
        start, end = sequence.num_computed, sequence.num_computed + take
        tokens = sequence.token_ids
        told = pages.num_told
        pages.num_told = len(pages.block_ids)
        score_ids: tuple[int, ...] = ()
        if start < sequence.num_prompt and sequence.needs_prompt_scores:
            score_ids = tuple(tokens[start + 1 : min(end + 1, sequence.num_prompt)])
        return SequenceSlice(
            sequence.slot,
            start,
            tuple(tokens[start:end]),
            told,
            tuple(pages.block_ids[told:]),
            1 if end == len(tokens) else 0,
            score_ids,
        )

    def _opening(self, sequence: Sequence) -> SlotOpening:
        request = sequence.request
        return SlotOpening(
            sequence.slot,
            request.params,
            request.choice,
            request.stop_ids,
            sequence.num_prompt,
            tuple(sequence.token_ids),
            request.request_id,
        )

    # -- endings --------------------------------------------------------------------------------------------

    def _check_fits(self, sequence: Sequence) -> None:
        capacity = self.kv.pool.num_total * self.kv.page_size
        if not sequence.token_ids:
            raise RequestError("the prompt is empty: send at least one token", "prompt")
        if sequence.num_prompt >= self.config.max_model_len or sequence.stop_length > capacity:
            raise RequestError(
                f"This model's maximum context length is {min(self.config.max_model_len, capacity)} tokens; "
                f"the prompt has {sequence.num_prompt} and up to {sequence.request.params.max_tokens} more "
                "were asked for. Shorten the prompt or lower max_tokens.",
                "prompt",
            )

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Why the sequence ends with `token`, its last one, if it does."""
        length = len(sequence.token_ids)
        request = sequence.request
        if token in request.stop_ids and length - sequence.num_prompt >= request.params.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= sequence.stop_length else None

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
        if sequence.status is Status.RUNNING:
            self._vacate(sequence)
        else:
            self._num_waiting -= 1
        sequence.status = Status.FINISHED
        self._release_followers(sequence)
        request = sequence.request
        choices = self._requests[request.request_id]
        del choices[request.choice]
        if not choices:
            del self._requests[request.request_id]
        self._outbox.append(
            TokenOutput(
                request_id=request.request_id,
                choice=request.choice,
                token_ids=tokens,
                logprobs=outcome.logprobs[: len(tokens)] if outcome else (),
                prompt_logprobs=scores,
                finish=reason,
                num_cached=sequence.num_cached,
                num_preemptions=sequence.num_preemptions,
                timings=sequence.timings(now),
                failure=failure,
            )
        )

    def _release_followers(self, leader: Sequence) -> None:
        followers, leader.followers = leader.followers, []
        for sequence in followers:
            if sequence.status is Status.WAITING:
                self._waiting.push(sequence.key, sequence)

    def _vacate(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence."""
        assert sequence.pages is not None
        del self._running[bisect_left(self._running, sequence.key, key=lambda s: s.key)]
        self.kv.release(sequence.pages)
        self._free_slots.append(sequence.slot)
        self._closed_slots.append(sequence.slot)
        self._late.discard(sequence.slot)
        sequence.pages, sequence.slot, sequence.num_computed = None, -1, 0

    def _preempt(self, sequence: Sequence) -> None:
        self.preempted.append(sequence.slot)
        self._vacate(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.counters.preemptions += 1
        self._num_waiting += 1
        self._waiting.push(sequence.key, sequence)

    def _has_less_urgent(self, sequence: Sequence) -> bool:
        return bool(self._running) and self._running[-1].request.priority > sequence.request.priority

    def _preempt_less_urgent(self, sequence: Sequence) -> bool:
        """Preempt the last running sequence if its priority (not merely its age) is worse."""
        if not self._has_less_urgent(sequence):
            return False
        self._preempt(self._running[-1])
        return True
