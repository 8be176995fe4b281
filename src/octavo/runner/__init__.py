"""Workers: they hold the model and the KV pages, and do what a StepPlan says."""

from octavo.runner.worker import Worker, start_worker

__all__ = ["Worker", "start_worker"]
