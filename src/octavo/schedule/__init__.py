"""Which sequences run, and what each step computes."""

from octavo.schedule.policy import UNLIMITED, Admission, SchedulerConfig
from octavo.schedule.scheduler import Scheduler

__all__ = ["UNLIMITED", "Admission", "Scheduler", "SchedulerConfig"]
