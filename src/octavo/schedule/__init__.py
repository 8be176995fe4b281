"""The scheduler: which sequences run, and what each step computes."""

from octavo.schedule.policy import UNLIMITED, AdmissionPolicy, DraftPolicy, SchedulerConfig
from octavo.schedule.scheduler import Scheduler

__all__ = ["UNLIMITED", "AdmissionPolicy", "DraftPolicy", "Scheduler", "SchedulerConfig"]
