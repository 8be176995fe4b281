"""Metrics, logs and traces for operators. Nothing here imports torch or delays a token."""
