"""The knobs of the scheduler. Every classic way to batch is a setting, not a code path.

continuous batching   admission = CONTINUOUS                 static batching    admission = STATIC
chunked prefill       max_step_tokens = 512                  unchunked          max_step_tokens = unlimited
paged KV              page_size = 32                         contiguous         page_size = max_model_len
"""

import sys
from dataclasses import dataclass
from enum import StrEnum

UNLIMITED = sys.maxsize


class Admission(StrEnum):
    CONTINUOUS = "continuous"  # a waiting request joins as soon as there is room
    STATIC = "static"  # a batch is filled when the last one is through, and not before


@dataclass(frozen=True)
class SchedulerConfig:
    max_running: int
    max_model_len: int
    max_step_tokens: int = UNLIMITED
    admission: Admission = Admission.CONTINUOUS
