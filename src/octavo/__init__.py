"""Octavo: an exact, fast and readable LLM inference engine."""

__version__ = "0.1.0.dev0"
