"""Bugs to plant in speculative decoding: in the plans of drafts, and in what follows from their results."""

from octavo.schedule.drafts import Drafts
from octavo.schedule.scheduler import Scheduler
from octavo.schedule.sequence import Sequence
from octavo.schedule.sequence_drafts import SequenceDrafts
from octavo.simulate.fake_grammar import FakeMatcher
from octavo.simulate.fake_worker import FakeWorker
from octavo.simulate.planted_bug import PlantedBug

PLANNED_DRAFT_BUGS = (
    PlantedBug("drafts exceed the budget", Drafts, "_add_from_text", "min(depth, room.budget)", "depth"),
    PlantedBug(
        "drafts of other sequences are not subtracted from the budget",
        Drafts,
        "_fitting",
        "room.budget -= num_drafts",
        "pass",
    ),
    PlantedBug(
        "a sequence that computes its prompt has drafts",
        Drafts,
        "add",
        "slices[i].num_sampled and slices[i].start >= sequence.num_prompt",
        "slices[i].num_sampled",
    ),
    PlantedBug(
        "a chunk that does not reach the last token has drafts",
        Drafts,
        "add",
        "slices[i].num_sampled and ",
        "",
    ),
    PlantedBug(
        "drafts take blocks that running sequences need",
        Drafts,
        "add",
        "self._kv.num_available - num_running",
        "self._kv.num_available",
    ),
    PlantedBug(
        "blocks for drafts of other sequences are not subtracted",
        Drafts,
        "_fitting",
        "room.spare_blocks -= len(table.block_ids) - num_held",
        "pass",
    ),
    PlantedBug(
        "the margin of blocks is ignored",
        Drafts,
        "_fitting",
        "num_held + max(0, room.spare_blocks)",
        "num_held + kv.num_available",
    ),
    PlantedBug(
        "drafts without blocks are kept",
        Drafts,
        "_fitting",
        "min(num_drafts, num_blocks * kv.block_size - num_known)",
        "num_drafts",
    ),
    PlantedBug(
        "blocks of drafts are not sent to the workers",
        Sequence,
        "with_drafts",
        "piece.block_ids + block_ids",
        "piece.block_ids",
    ),
    PlantedBug("drafts slow down a prompt", Drafts, "_depths", "if not self._only_decodes:", "if False:"),
    PlantedBug(
        "one draft more than the limit",
        Drafts,
        "_depths",
        "longest = self._config.max_draft_tokens",
        "longest = self._config.max_draft_tokens + 1",
    ),
    PlantedBug("drafts beyond the end", Drafts, "_propose", "rest - 1", "rest"),
    PlantedBug("proposals longer than the limit", Drafts, "_propose", "limit)[:limit])", "limit))"),
    PlantedBug(
        "a stop id is drafted", Drafts, "_propose", "return drafted[:number]", "return drafted[: number + 1]"
    ),
    PlantedBug(
        "drafts from the answers of other cache salts",
        Drafts,
        "_drafts_of",
        "self._speculation.open(sequence.request.cache_salt)",
        "self._speculation.open('')",
    ),
    PlantedBug(
        "a proposer sees the answer only",
        Drafts,
        "_propose",
        "propose(sequence.token_ids,",
        "propose(sequence.token_ids[sequence.num_prompt :],",
    ),
)

GRANT_BUGS = (
    PlantedBug(
        "the draft model exceeds the budget",
        Drafts,
        "_add_grants",
        "min(depth, room.budget, rest)",
        "min(depth, rest)",
    ),
    PlantedBug(
        "the draft model drafts beyond the end", Drafts, "_add_grants", "stop_length - 1,", "stop_length,"
    ),
    PlantedBug(
        "the draft model drafts beyond its context",
        Drafts,
        "_add_grants",
        "min(sequences[i].stop_length - 1, self._config.draft_context)",
        "sequences[i].stop_length - 1",
    ),
    PlantedBug(
        "the draft model slows down a prompt", Drafts, "_add_grants", "elif self._only_decodes:", "elif True:"
    ),
    PlantedBug(
        "the draft model drafts more than the limit",
        Drafts,
        "_add_grants",
        "longest = self._config.max_draft_tokens",
        "longest = self._config.max_draft_tokens + 1",
    ),
    PlantedBug(
        "blocks for the draft model are not sent to the workers",
        Sequence,
        "with_grant",
        "piece.block_ids + block_ids",
        "piece.block_ids",
    ),
    PlantedBug(
        "a slice has drafts from text and of the model", Drafts, "_add_from_text", "else:", "if True:"
    ),
)

ACCEPTED_DRAFT_BUGS = (
    PlantedBug(
        "KV of rejected drafts is taken for computed",
        Scheduler,
        "apply",
        "piece.num_known + outcome.num_accepted",
        "piece.num_known + outcome.num_drafted",
    ),
    PlantedBug(
        "the first rejected draft is taken for computed",
        Scheduler,
        "apply",
        "piece.num_known + outcome.num_accepted",
        "piece.num_known + min(outcome.num_accepted + 1, outcome.num_drafted)",
    ),
    PlantedBug(
        "accepted drafts are computed again",
        Scheduler,
        "apply",
        "piece.num_known + outcome.num_accepted",
        "piece.num_known",
    ),
    PlantedBug(
        "rejected drafts are committed",
        Scheduler,
        "apply",
        "kv.commit(table, sequence.token_ids, computed)",
        "end = piece.start + len(piece.token_ids)\n"
        "            kv.commit(table, [*sequence.token_ids[:computed], *piece.draft_ids], end)",
    ),
    PlantedBug(
        "rejected drafts are appended to the answer",
        Scheduler,
        "apply",
        "sequence.append(outcome.token_ids)",
        "sequence.append(piece.draft_ids or outcome.token_ids)",
    ),
    PlantedBug(
        "only the last of several tokens is appended",
        Scheduler,
        "apply",
        "sequence.append(outcome.token_ids)",
        "sequence.append(outcome.token_ids[-1:])",
    ),
    PlantedBug(
        "tokens after the end are kept",
        Sequence,
        "append",
        "return number, reason",
        "return len(token_ids), reason",
    ),
    PlantedBug(
        "tokens after a stop id are appended",
        Sequence,
        "append",
        "if reason is not None:",
        "if reason is not None and number == len(token_ids):",
    ),
    PlantedBug(
        "a tenant is charged for rejected drafts",
        Scheduler,
        "apply",
        "self._queues.charge(sequence, piece.start, computed)",
        "self._queues.charge(sequence, piece.start, piece.start + len(piece.token_ids))",
    ),
    PlantedBug(
        "accepted drafts are not counted",
        Scheduler,
        "apply",
        "counters.tokens_accepted += outcome.num_accepted",
        "pass",
    ),
    PlantedBug(
        "drafts of steps without an accepted one are not counted",
        Scheduler,
        "apply",
        "counters.tokens_drafted += outcome.num_drafted",
        "counters.tokens_drafted += outcome.num_drafted if outcome.num_accepted else 0",
    ),
    PlantedBug(
        "drafts of the draft model are not counted",
        Scheduler,
        "apply",
        "counters.tokens_drafted += outcome.num_drafted",
        "counters.tokens_drafted += piece.num_drafted",
    ),
    PlantedBug(
        "a request reports every token after a draft as accepted",
        SequenceDrafts,
        "note_draft",
        "self.num_accepted += num_accepted",
        "self.num_accepted += num_accepted + 1",
    ),
)

DRAFT_WORKER_BUGS = (
    PlantedBug(
        "a draft is accepted without comparison",
        FakeWorker,
        "_answer",
        "if draft != token:",
        "if draft != token and num_accepted:",
    ),
    PlantedBug(
        "drafts after a rejected one are accepted", FakeWorker, "_answer", "        break", "        continue"
    ),
    PlantedBug(
        "the noise of another position",
        FakeWorker,
        "_draw",
        "position=position + number",
        "position=position",
    ),
    PlantedBug(
        "penalties do not count the drafts before a row",
        FakeWorker,
        "_draw",
        "slot.tally + sum(drafted[:number])",
        "slot.tally",
    ),
    PlantedBug(
        "penalties count rejected drafts",
        FakeWorker,
        "_answer",
        "for token in tokens:",
        "slot.tally += sum(piece.draft_ids[num_accepted:])\n    for token in tokens:",
    ),
    PlantedBug(
        "the mask is not rolled back", FakeMatcher, "masks_ahead", "self.roll_back(len(draft_ids))", "pass"
    ),
    PlantedBug(
        "the mask is rolled back too far",
        FakeMatcher,
        "masks_ahead",
        "self.roll_back(len(draft_ids))",
        "self.roll_back(len(draft_ids) + 1 if draft_ids else 0)",
    ),
    PlantedBug(
        "rows of drafts use the first mask", FakeWorker, "_draw", "mask=masks[number]", "mask=masks[0]"
    ),
    PlantedBug(
        "rows of drafts use the context of the first",
        FakeWorker,
        "_draw",
        "contexts[number]",
        "contexts[0]",
    ),
    PlantedBug(
        "a row that failed gives a token",
        FakeWorker,
        "_draw",
        "num_rows = slot.fails_at - position",
        "pass",
    ),
    PlantedBug(
        "logprobs of accepted drafts are left out",
        FakeWorker,
        "_answer",
        "for token, context in zip(tokens, contexts, strict=False)",
        "for token, context in list(zip(tokens, contexts))[-1:]",
    ),
)
