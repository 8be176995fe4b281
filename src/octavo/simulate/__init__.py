"""The real scheduler and cache on a virtual clock, with a worker that only pretends to compute.

workload   one seed decides everything that happens      fake_worker   obeys a plan as a runner must
oracle     what each request must answer                 cost          how long a step takes
world      drives a run and checks every step            rules_*       what must hold
"""
