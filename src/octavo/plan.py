"""Messages between the scheduler and the workers: what one step computes, and what came of it.

Their size is proportional to the sequences in the step and the tokens computed, never to the context:
a worker keeps, per slot, the page table and what sampling needs, and a plan tells it what changed.
"""

import msgspec

from octavo.protocol import Failure, SamplingParams, TokenLogprob


class SlotOpening(msgspec.Struct, frozen=True):
    """A slot gets a new owner. The worker forgets everything it knew of the slot."""

    slot: int
    params: SamplingParams
    choice: int
    stop_ids: tuple[int, ...]
    num_prompt: int
    token_ids: tuple[int, ...]  # the prompt, then what was emitted before a preemption or a crash
    request_id: str = ""  # for those who watch; no result depends on it


class SequenceSlice(msgspec.Struct, frozen=True):
    """The tokens of one sequence that this step computes.

        positions      0 ......... start ............ start + len(token_ids)
                       |  KV is in pages  |  computed now  |

    The page table of the slot becomes table[:table_from] + block_ids before the step: growth, prefix
    hits and swapped duplicates are all this one edit.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    table_from: int
    block_ids: tuple[int, ...]
    num_sampled: int  # how many of the last rows draw a token; 0 in the middle of a prompt
    score_ids: tuple[int, ...] = ()  # prompt logprobs: the token that followed row 0, 1, ...


class StepPlan(msgspec.Struct, frozen=True):
    step: int
    closed: tuple[int, ...]  # slots given back since the last plan; applied before `opened`
    opened: tuple[SlotOpening, ...]
    slices: tuple[SequenceSlice, ...]


class SliceResult(msgspec.Struct, frozen=True):
    """`failure` blames this sequence alone; its neighbours' results stand.

    `is_late`: the slice was to draw a token, and what its grammar allows is not known yet. Its last row is
    computed again, in a step after the one that does not name the slot in `StepResult.late` any more.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    failure: Failure | None = None
    is_late: bool = False


class StepResult(msgspec.Struct, frozen=True):
    slices: tuple[SliceResult, ...]  # one per slice of the plan, in its order
    late: tuple[int, ...] = ()  # slots that could still draw no token
