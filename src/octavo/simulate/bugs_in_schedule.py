"""Bugs to plant in sequences, the queue and the scheduler."""

from octavo.lazy_heap import LazyHeap
from octavo.schedule.scheduler import Scheduler
from octavo.schedule.sequence import Sequence
from octavo.schedule.tenant_queues import TenantQueues
from octavo.simulate.planted_bug import PlantedBug

SEQUENCE_AND_QUEUE_BUGS = (
    PlantedBug(
        "priority inverted", Sequence, "__init__", "(request.priority, order)", "(-request.priority, order)"
    ),
    PlantedBug(
        "maximum length off by one",
        Sequence,
        "__init__",
        "min(self.num_prompt + max_tokens, max_model_len)",
        "min(self.num_prompt + max_tokens + 1, max_model_len)",
    ),
    PlantedBug(
        "resume tokens emitted again",
        Sequence,
        "__init__",
        "[*request.prompt_ids, *request.resume_ids]",
        "[*request.prompt_ids]",
    ),
    PlantedBug(
        "the queue is no heap after a cleanup",
        LazyHeap,
        "push",
        "heapq.heapify(self._entries)",
        "self._entries.reverse()",
    ),
    PlantedBug(
        "the queue returns ended sequences",
        LazyHeap,
        "peek",
        "while entries and not self._is_live(entries[0][2]):",
        "while entries and False:",
    ),
)

SCHEDULER_BUGS = (
    PlantedBug(
        "leak on abort in prefill",
        Scheduler,
        "_release_slot",
        "self.kv.release(sequence.block_table)",
        "if sequence.num_computed >= sequence.num_prompt:\n        self.kv.release(sequence.block_table)",
    ),
    PlantedBug(
        "abort of an unknown request ends another one",
        Scheduler,
        "abort",
        "list(self._requests.get(request_id, {}).values())",
        "list(self._requests.get(request_id, next(iter(self._requests.values()), {})).values())",
    ),
    PlantedBug(
        "abort of one choice ends all",
        Scheduler,
        "abort",
        "if choice is None or choice == sequence.request.choice:",
        "if True:",
    ),
    PlantedBug(
        "abort ignores parked followers",
        Scheduler,
        "abort",
        "if choice is None or choice == sequence.request.choice:",
        "if any(sequence in other.followers for other in self._requests[request_id].values()):\n"
        "            continue\n"
        "        if choice is None or choice == sequence.request.choice:",
    ),
    PlantedBug(
        "the head of the queue is lost if there is no room",
        Scheduler,
        "_admit",
        "            kv.release(table)\n            return False",
        "            kv.release(table)\n            sequence.queue.waiting.pop()\n            return False",
    ),
    PlantedBug(
        "a failed admission keeps its shared blocks",
        Scheduler,
        "_admit",
        "            kv.release(table)\n            return False",
        "            return False",
    ),
    PlantedBug(
        "no spare blocks for running sequences",
        Scheduler,
        "_lacks_blocks",
        "sequence.blocks_needed + margin > self.kv.num_available",
        "sequence.blocks_needed > self.kv.num_available",
    ),
    PlantedBug(
        "an older request preempts one of equal priority",
        TenantQueues,
        "victims",
        "sequence.request.priority <= head.request.priority",
        "sequence.key < head.key",
    ),
    PlantedBug(
        "the first sequence is preempted, not the last",
        Scheduler,
        "_make_room",
        "victim = self._queues.last_running()",
        "victim = self._queues.last_running()\n"
        "        victim = victim if victim is sequence else self._queues.running()[0]",
    ),
    PlantedBug(
        "preemption keeps progress",
        Scheduler,
        "_admit",
        "sequence.num_computed = table.num_shared * kv.block_size",
        "sequence.num_computed = max(table.num_shared * kv.block_size, "
        "(len(sequence.token_ids) - 1) if sequence.num_preemptions else 0)",
    ),
    PlantedBug(
        "preempted sequences go to the end of the queue",
        Scheduler,
        "_preempt",
        "sequence.queue.waiting.push(sequence.key, sequence)",
        "sequence.queue.waiting.push((sequence.key[0], self._order), sequence)",
    ),
    PlantedBug(
        "a failed slice ends the processing of the batch",
        Scheduler,
        "apply",
        "failure=outcome.failure)\n            continue",
        "failure=outcome.failure)\n            break",
    ),
    PlantedBug(
        "blocks of a failed slice are committed",
        Scheduler,
        "apply",
        "            self._finish(sequence, FinishReason.ERROR",
        "            end = piece.start + len(piece.token_ids)\n"
        "            self.kv.commit(sequence.block_table, sequence.token_ids, end)\n"
        "            self._finish(sequence, FinishReason.ERROR",
    ),
    PlantedBug(
        "a slice is committed when it is planned",
        Scheduler,
        "schedule",
        "slices.append(sequence.take(take))",
        "self.kv.commit(sequence.block_table, sequence.token_ids, sequence.num_computed + take)\n"
        "            slices.append(sequence.take(take))",
    ),
    PlantedBug(
        "wrong table_from",
        Sequence,
        "_send_blocks",
        "num_sent = table.num_sent",
        "num_sent = max(table.num_sent, table.num_shared)",
    ),
    PlantedBug(
        "closed slots not reported before the first computed token",
        Scheduler,
        "_release_slot",
        "self._closed_slots.append(sequence.slot)",
        "if sequence.num_computed:\n        self._closed_slots.append(sequence.slot)",
    ),
    PlantedBug(
        "slots closed by a lost step are not reported",
        Scheduler,
        "schedule",
        "return StepPlan(counters.steps, tuple(self._closed_slots)",
        "closed, self._closed_slots = self._closed_slots, []\n"
        "    return StepPlan(counters.steps, tuple(closed)",
    ),
    PlantedBug(
        "slot reopened with the prompt only after a preemption",
        Sequence,
        "opening",
        "tuple(self.token_ids)",
        "tuple(request.prompt_ids)",
    ),
    PlantedBug("followers never released", Scheduler, "_emit", "self._release_followers(sequence)", "pass"),
    PlantedBug(
        "followers lost when their leader is aborted",
        Scheduler,
        "_finish",
        "self._release_followers(sequence)",
        "pass",
    ),
    PlantedBug(
        "deadline never expires for waiting sequences",
        Scheduler,
        "_expire",
        "if deadline is None or deadline > now:",
        "if deadline is None or deadline > now or sequence.status is SequenceStatus.WAITING:",
    ),
    PlantedBug("deadline expires early", Scheduler, "_expire", "deadline > now", "deadline > now + 1 / 32"),
    PlantedBug("deadline comparison inverted", Scheduler, "_expire", "deadline > now", "deadline < now"),
    PlantedBug(
        "admitted sequences exceed the budget",
        Scheduler,
        "schedule",
        "take = 1 if is_reserved else min(pending, room.budget - room.reserved)",
        "take = 1 if is_reserved else min(pending, max(2, room.budget - room.reserved))",
    ),
    PlantedBug(
        "decode reserve ignored",
        Scheduler,
        "schedule",
        "min(pending, room.budget - room.reserved)",
        "min(pending, room.budget)",
    ),
    PlantedBug(
        "admission skips the head",
        LazyHeap,
        "peek",
        "return entries[0][2] if entries else None",
        "entries[:2] = reversed(entries[:2])\n    return entries[0][2] if entries else None",
    ),
    PlantedBug(
        "static admission joins a running batch",
        Scheduler,
        "_may_admit",
        "or not self._queues.num_running",
        "or self._queues.num_running < 2",
    ),
    PlantedBug(
        "stop id ignores min_tokens",
        Sequence,
        "finish_reason",
        "token in request.stop_ids and length - self.num_prompt >= request.params.min_tokens",
        "token in request.stop_ids",
    ),
    PlantedBug(
        "min_tokens counts the prompt",
        Sequence,
        "finish_reason",
        "length - self.num_prompt >= request.params.min_tokens",
        "length >= request.params.min_tokens",
    ),
    PlantedBug("a resumed answer that is complete continues", Scheduler, "add", "if ended:", "if False:"),
    PlantedBug(
        "a request with a duplicate id replaces the first",
        Scheduler,
        "add",
        "if request.choice in choices:",
        "if False:",
    ),
    PlantedBug(
        "a request that never fits is accepted",
        Scheduler,
        "_check_fits",
        "or sequence.stop_length > capacity",
        "",
    ),
    PlantedBug(
        "prompt scores repeated after a preemption",
        Scheduler,
        "_emit",
        "scores = scores[max(0, sequence.num_scored - piece.start) :]",
        "scores = scores[:]",
    ),
    PlantedBug(
        "prompt scores lost because of a prefix hit",
        Scheduler,
        "_admit",
        "reuse=not sequence.needs_prompt_scores",
        "reuse=True",
    ),
    PlantedBug(
        "prompt scores lost because of adopted blocks",
        Scheduler,
        "_adopt",
        "if sequence.needs_prompt_scores:",
        "if False:",
    ),
    PlantedBug(
        "cached tokens counted again after a preemption",
        Scheduler,
        "_count_cached",
        "tokens = min(tokens, sequence.num_prompt - sequence.num_cached)",
        "pass",
    ),
    PlantedBug(
        "adopted tokens not counted as cached",
        Scheduler,
        "_adopt",
        "self._count_cached(sequence, of_prompt)",
        "pass",
    ),
    PlantedBug(
        "adopted tokens of the answer counted as cached",
        Scheduler,
        "_adopt",
        "min(gained, sequence.num_prompt - sequence.num_computed)",
        "gained",
    ),
    PlantedBug(
        "a preempted sequence is not counted as waiting",
        Scheduler,
        "_preempt",
        "self._num_waiting += 1",
        "pass",
    ),
    PlantedBug(
        "a lost step is treated as completed", Scheduler, "lose_step", "self._preempt(sequence)", "pass"
    ),
)
