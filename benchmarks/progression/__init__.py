"""Measure what each optimisation gains: turn them on one by one, each on the workload that shows it."""
