"""Messages between the scheduler and the workers: what one step computes, and its results.

Their size is proportional to the sequences in the step and the tokens computed, never to the context:
a worker keeps the block table and the sampling state of each slot, and a plan contains only the changes.
"""

import msgspec

from octavo.protocol import Failure, SamplingParams, TokenLogprob


class SlotOpening(msgspec.Struct, frozen=True):
    """A slot gets a new owner. The worker discards all previous state of the slot."""

    slot: int
    params: SamplingParams
    choice: int
    stop_ids: tuple[int, ...]
    num_prompt: int
    token_ids: tuple[int, ...]  # the prompt, then tokens emitted before a preemption or a crash
    request_id: str = ""  # for heartbeats; no result depends on it


class SequenceSlice(msgspec.Struct, frozen=True):
    """The tokens of one sequence that this step computes.

        positions      0 ......... start ......................... start + len(token_ids)
                       |  KV is in blocks  |  known  |   drafted   |
                                           |     computed now      |

    The block table of the slot becomes table[:table_from] + block_ids before the step: growth, prefix
    hits and replaced duplicates are all expressed by this one edit.

    Drafted tokens are guesses at the next tokens of the answer. The row of the last known token and those of
    the drafts each sample a token; a draft is accepted if all before it are and the same token was sampled.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    table_from: int
    block_ids: tuple[int, ...]
    num_sampled: int  # how many of the last rows sample a token; 0 in the middle of a prompt
    score_ids: tuple[int, ...] = ()  # prompt logprobs: the token that followed row 0, 1, ...
    num_drafted: int = 0  # how many of the last tokens are drafts; then `num_sampled` is one more
    num_granted: int = 0  # how many drafts the worker may add with its draft model; there are blocks for them

    @property
    def num_known(self) -> int:
        """How many of the tokens are in the prompt or the answer."""
        return len(self.token_ids) - self.num_drafted

    @property
    def draft_ids(self) -> tuple[int, ...]:
        return self.token_ids[self.num_known :]

    def with_drafts(self, drafted: tuple[int, ...]) -> "SequenceSlice":
        """Return this slice of known tokens with drafts at the end, instead of a grant."""
        return msgspec.structs.replace(
            self,
            token_ids=self.token_ids + drafted,
            num_sampled=1 + len(drafted),
            num_drafted=len(drafted),
            num_granted=0,
        )


class StepPlan(msgspec.Struct, frozen=True):
    step: int
    closed: tuple[int, ...]  # slots released since the last plan; applied before `opened`
    opened: tuple[SlotOpening, ...]
    slices: tuple[SequenceSlice, ...]


class SliceResult(msgspec.Struct, frozen=True):
    """The result of one slice. `failure` is about this sequence only; the results of others are valid.

    `is_late`: the slice should sample a token, but the tokens that its grammar allows are not known yet. The
    row of its last known token is computed again after the first step whose `StepResult.late` no longer has
    the slot.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    failure: Failure | None = None
    is_late: bool = False
    num_drafted: int = 0  # drafts that the slice had, of the plan or of the worker's draft model
    num_accepted: int = 0  # of these: `token_ids` begins with them, then comes one that was not drafted


class DraftPass(msgspec.Struct, frozen=True):
    """One pass of the worker's draft model over `num_rows` tokens."""

    num_rows: int
    seconds: float
    catches_up: bool = False  # it computed known tokens and drafted none


class StepResult(msgspec.Struct, frozen=True):
    slices: tuple[SliceResult, ...]  # one per slice of the plan, in its order
    late: tuple[int, ...] = ()  # slots that still cannot sample a token
    draft_passes: tuple[DraftPass, ...] = ()
    draft_model_failed: bool = False  # in this step or before: it drafts nothing any more
