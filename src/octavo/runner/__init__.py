"""Workers: they hold the model and the KV blocks, and execute StepPlans."""

from octavo.runner.worker import Worker, start_worker

__all__ = ["Worker", "start_worker"]
