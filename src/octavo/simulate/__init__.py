"""Simulation: the real scheduler and cache on a virtual clock, with a fake worker that computes hashes.

workload     draws all events from one seed         fake_worker   executes plans as a runner must
oracle       computes the expected answers          cost          duration of a step
simulation   drives a run and checks every step     rules_*       invariants
guesses      proposes drafts, right and wrong       bugs_in_*     bugs that the rules must find
"""
