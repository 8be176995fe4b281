"""The settings of the scheduler. Every classic batching strategy is a setting, not a code path.

continuous batching   admission = CONTINUOUS                 static batching    admission = STATIC
chunked prefill       max_step_tokens = 512                  unchunked          max_step_tokens = unlimited
paged KV              block_size = 32                         contiguous         block_size = max_model_len
speculation           a method of drafting                   none               no method
"""

import sys
from dataclasses import dataclass
from enum import StrEnum

UNLIMITED = sys.maxsize
# Steps for which an engine has prompts in its own queue, so that it never waits for the front end.
CREDIT_STEPS = 2


class AdmissionPolicy(StrEnum):
    CONTINUOUS = "continuous"  # a waiting request joins as soon as there is room
    STATIC = "static"  # requests are admitted only when the last batch has finished


class DraftPolicy(StrEnum):
    WORTH = "worth"  # draft a token only if it makes the batch faster
    ALL = "all"  # draft all that is proposed: for tests


@dataclass(frozen=True)
class SchedulerConfig:
    max_running: int
    max_model_len: int
    max_step_tokens: int = UNLIMITED
    admission: AdmissionPolicy = AdmissionPolicy.CONTINUOUS
    max_draft_tokens: int = 8  # per sequence and step
    draft_context: int = 0  # how many tokens the worker's draft model can see; 0: there is none
    draft_policy: DraftPolicy = DraftPolicy.WORTH

    @property
    def prompt_credit(self) -> int:
        """See `EngineFacts.prompt_credit`. A static batch must have all that waits to choose from."""
        if self.admission is AdmissionPolicy.STATIC or self.max_step_tokens == UNLIMITED:
            return 0
        return CREDIT_STEPS * self.max_step_tokens
