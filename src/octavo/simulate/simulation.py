"""Drive the real scheduler and cache through a workload and check all rules at every step."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import msgspec

from octavo.cache import KVManager
from octavo.errors import RequestError
from octavo.plan import StepPlan
from octavo.protocol import FinishReason, GenerateRequest
from octavo.schedule import Scheduler
from octavo.simulate.cost import StepCost
from octavo.simulate.fake_worker import FakeWorker, PlanError
from octavo.simulate.guesses import Guesses
from octavo.simulate.oracle import expected_answer
from octavo.simulate.rules_of_cache import WatchedTree, check_block_map, check_committed, check_outline
from octavo.simulate.rules_of_plans import PlanRules
from octavo.simulate.tracked_request import TrackedRequest, Violation
from octavo.simulate.workload import SimulatedWorkload

WAIT_CHECK_STEPS = 128  # steps between checks for starvation
VIEW_CHECK_STEPS = 64  # steps between checks of the view


@dataclass
class Figures:
    """Counts of events in one or more simulations."""

    simulations: int = 0
    steps: int = 0
    requests: int = 0
    rejected: int = 0
    tokens_computed: int = 0
    tokens_sampled: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    preemptions: int = 0
    blocks_evicted: int = 0
    aborts: int = 0
    deadlines: int = 0
    errors: int = 0
    restarts: int = 0
    lost_steps: int = 0
    late: int = 0

    def add(self, other: "Figures") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, f.name):,} {f.name.replace('_', ' ')}" for f in fields(self))


class Simulation:
    """One run. Appends every encoded plan and result to `log`, if given."""

    def __init__(self, seed: int, log: list[bytes] | None = None, cost: StepCost | None = None) -> None:
        self.seed = seed
        self.workload = SimulatedWorkload(seed)
        self.settings = self.workload.settings
        self.figures = Figures(simulations=1)
        self._cost = cost or StepCost()
        self._log = log
        self._now = 0.0
        self._work_total = 0  # of all requests so far
        self._work_ended = 0
        self._live: dict[tuple[int, int], TrackedRequest] = {}  # by seed and choice, in order of arrival
        self._by_name: dict[tuple[str, int], TrackedRequest] = {}  # by id and choice, including ended ones
        self._with_deadline: list[TrackedRequest] = []
        self._last_ended = "none yet"
        self._guesses = Guesses(seed, self.settings.vocab)
        self._start_engine()

    def run(self) -> Figures:
        """Run the workload until every request is answered. Raises Violation."""
        try:
            for step in self._steps():
                if step % WAIT_CHECK_STEPS == 0:
                    for tracked in self._live.values():
                        self._check_wait(tracked)
            self._check_end()
        except (
            AssertionError,
            PlanError,
            RequestError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:
            # Any failure inside the engine is a finding, too.
            kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
            raise Violation(f"seed {self.seed}, step {self.figures.steps}: {kind}{error}") from error
        self._collect_figures()
        return self.figures

    def _steps(self) -> Iterator[int]:
        figures, workload = self.figures, self.workload
        while figures.steps < self.settings.arrival_steps or self._live:
            for _ in range(workload.arrivals(figures.steps, len(self._live))):
                for request in workload.request(self._now):
                    self._arrive(request)
            if workload.wants_abort():
                self._abort()
            self._step()
            figures.steps += 1
            if workload.wants_restart():
                self._restart()
            yield figures.steps

    # -- the engine -----------------------------------------------------------------------------------------

    def _start_engine(self) -> None:
        settings = self.settings
        self._kv = KVManager(settings.num_blocks, settings.block_size, prefix_caching=settings.prefix_caching)
        if settings.prefix_caching:
            self._kv.tree = WatchedTree(settings.block_size)
        speculation = self._guesses if settings.speculates else None
        self._scheduler = Scheduler(settings.scheduler, self._kv, speculation)
        self._worker = FakeWorker(
            settings.num_blocks,
            settings.block_size,
            settings.scheduler.max_running,
            settings.vocab,
            late_rate=settings.late_rate,
            seed=self.seed,
        )
        self._rules = PlanRules(
            settings.scheduler,
            settings.block_size,
            prefix_caching=settings.prefix_caching,
            speculates=settings.speculates,
        )
        self._num_steps = 0
        self._num_sampled = 0

    def _step(self) -> None:
        scheduler = self._scheduler
        plan = scheduler.schedule(self._now)
        self._take_outputs()  # of aborts and deadlines: the rules must know which requests ended
        self._check_deadlines()
        self._rules.follow(plan, self._live, self._kv.num_available)
        self._now += self._cost.seconds(plan)
        self._num_steps += 1
        if self.workload.loses_step():
            self._lose_step(plan)
        else:
            result = self._worker.execute(plan)
            self._rules.note_results(plan, result)
            self.figures.late += sum(outcome.is_late for outcome in result.slices)
            scheduler.apply(plan, result, self._now)
            self._take_outputs()
            if self._log is not None:
                self._log.append(msgspec.json.encode((plan, result)))
        # The scheduler's own check visits every request: while many wait, run it only in every eighth step.
        if len(self._live) < 64 or self._num_steps % 8 == 0:
            scheduler.check()
        check_committed(scheduler.running(), self._kv)
        if self._num_steps % VIEW_CHECK_STEPS == 0:
            check_block_map(scheduler.running(), self._kv)
            if self._kv.tree is not None:
                check_outline(self._kv.tree)
        self._check_counters()

    def _lose_step(self, plan: StepPlan) -> None:
        self.figures.lost_steps += 1
        self._worker.lose_step(plan if self.workload.sees_lost_step() else None)
        self._scheduler.lose_step()
        self._rules.lose_step(plan)

    def _restart(self) -> None:
        """Simulate an engine crash: all state is lost, and the front end replays unfinished requests."""
        self._collect_figures()
        self.figures.restarts += 1
        self._start_engine()
        survivors, self._live = self._live, {}
        for handle, tracked in survivors.items():
            tracked.reset_after_crash()
            tracked.leader = self._leader_of(tracked.request)
            self._scheduler.add(tracked.request, self._now)
            self._live[handle] = tracked

    # -- events ---------------------------------------------------------------------------------------------

    def _arrive(self, request: GenerateRequest) -> None:
        settings, params = self.settings, request.params
        assert params.seed is not None
        assert params.max_tokens is not None
        longest = settings.scheduler.max_model_len
        num_prompt = len(request.prompt_ids)
        fits = 0 < num_prompt < longest and min(num_prompt + params.max_tokens, longest) <= settings.capacity
        if not fits:
            self._expect_rejection(request)
            return
        answer = expected_answer(request, settings.vocab, longest)
        tracked = TrackedRequest(request, answer, self.figures.requests, longest)
        self._guesses.expect(request, answer.tokens)
        tracked.leader = self._leader_of(request)
        tracked.arrival_step, tracked.work_done_at_arrival = self.figures.steps, self._work_ended
        self._scheduler.add(request, self._now)
        self.figures.requests += 1
        self._work_total += tracked.work
        self._live[params.seed, request.choice] = tracked
        self._by_name[request.request_id, request.choice] = tracked
        if request.deadline is not None:
            self._with_deadline.append(tracked)
        if not tracked.is_complete and self.workload.wants_duplicate():
            self._expect_rejection(request)
        self.workload.remember(request.prompt_ids + tracked.answer.tokens[:-1])

    def _expect_rejection(self, request: GenerateRequest) -> None:
        self.figures.rejected += 1
        try:
            self._scheduler.add(request, self._now)
        except RequestError:
            return
        raise Violation(f"{request} was accepted although it cannot fit or its id is in use")

    def _leader_of(self, request: GenerateRequest) -> TrackedRequest | None:
        """Return the choice that computes the prompt for `request`, if any."""
        if request.params.prompt_logprobs is not None and len(request.prompt_ids) > 1:
            return None
        for choice in range(request.choice if self.settings.prefix_caching else 0):
            tracked = self._by_name.get((request.request_id, choice))
            if tracked and tracked.finish is None and not tracked.started and not tracked.is_complete:
                return tracked
        return None

    def _abort(self) -> None:
        live = [tracked.request.request_id for tracked in self._live.values()]
        for abort in self.workload.aborts(live, self._last_ended):
            self._take_outputs()
            for tracked in self._live.values():
                request = tracked.request
                if request.request_id == abort.request_id and abort.choice in (None, request.choice):
                    tracked.is_aborted = True
            self._scheduler.abort(abort.request_id, self._now, abort.choice)
            self._take_outputs()
            if any(tracked.is_aborted for tracked in self._live.values()):
                raise Violation(f"{abort} did not end all requests that it names")

    def _take_outputs(self) -> None:
        figures = self.figures
        for output in self._scheduler.drain():
            tracked = self._by_name.get((output.request_id, output.choice))
            if tracked is None:
                raise Violation(f"an output for the unknown request {output.request_id}")
            tracked.receive(output, self._now)
            self._num_sampled += len(output.token_ids)
            if output.finish is not None:
                self._check_wait(tracked)
                seed = tracked.request.params.seed
                assert seed is not None
                del self._live[seed, output.choice]
                self._guesses.forget(tracked.request)
                self._work_ended += tracked.work
                self._last_ended = output.request_id
                figures.aborts += output.finish is FinishReason.ABORT
                figures.deadlines += output.finish is FinishReason.DEADLINE
                figures.errors += output.finish is FinishReason.ERROR

    # -- checks ---------------------------------------------------------------------------------------------

    def _check_deadlines(self) -> None:
        if self._with_deadline:
            self._with_deadline = [tracked for tracked in self._with_deadline if tracked.finish is None]
            for tracked in self._with_deadline:
                deadline = tracked.request.deadline
                if deadline is not None and deadline <= self._now:
                    raise Violation(f"{tracked} continues after its deadline")

    def _check_wait(self, tracked: TrackedRequest) -> None:
        """Check that the request does not starve.

        Every step computes at least one token unless all slots are late. A request therefore waits at most
        for all work since its arrival, part of which is repeated after preemptions and restarts.
        """
        work = self._work_total - tracked.work_done_at_arrival
        if self.settings.late_rate:
            work *= 2
        if self.figures.steps - tracked.arrival_step > 64 + 4 * work * (1 + self.figures.restarts):
            raise Violation(f"{tracked} starves: it has waited since step {tracked.arrival_step}")

    def _check_counters(self) -> None:
        stats = self._scheduler.stats()
        rules = self._rules
        num_running = len([t for t in rules.running.values() if t.finish is None])
        expected = (self._num_steps, self._num_sampled, rules.num_preemptions, num_running)
        actual = (stats.steps, stats.tokens_sampled, stats.preemptions, stats.num_running)
        if actual != expected:
            raise Violation(f"steps, tokens, preemptions, running: counted {actual}, expected {expected}")
        drafts = stats.tokens_drafted, stats.tokens_accepted
        if drafts != (rules.num_drafted, rules.num_accepted):
            raise Violation(
                f"drafted, accepted: counted {drafts}, expected {(rules.num_drafted, rules.num_accepted)}"
            )
        if stats.num_running + stats.num_waiting != len(self._live):
            raise Violation(f"{len(self._live)} requests are unfinished, but the scheduler counted {stats}")
        if not 0 <= stats.prompt_tokens_cached <= stats.prompt_tokens:
            raise Violation(f"more prompt tokens were cached than received: {stats}")

    def _check_end(self) -> None:
        """Check that, after all answers, every block is free or cached and nothing runs."""
        plan = self._scheduler.schedule(self._now)
        self._rules.follow(plan, self._live, self._kv.num_available)
        self._worker.execute(plan)
        if any(slot.is_open for slot in self._worker.slots):
            raise Violation("a slot of the worker is still open at the end")
        if self._scheduler.has_unfinished or self._kv.num_available != self.settings.num_blocks:
            raise Violation("blocks or requests remain at the end")

    def _collect_figures(self) -> None:
        """Add the counters of this engine, at its end, to the figures."""
        figures, stats = self.figures, self._scheduler.stats()
        figures.tokens_computed += stats.tokens_computed
        figures.tokens_sampled += stats.tokens_sampled
        figures.tokens_drafted += stats.tokens_drafted
        figures.tokens_accepted += stats.tokens_accepted
        figures.prompt_tokens += stats.prompt_tokens
        figures.prompt_tokens_cached += stats.prompt_tokens_cached
        figures.preemptions += stats.preemptions
        if isinstance(self._kv.tree, WatchedTree):
            figures.blocks_evicted += self._kv.tree.num_evicted


def run_simulations(first_seed: int, num_steps: int) -> Figures:
    """Run simulations with consecutive seeds until they total `num_steps` steps. Raises Violation."""
    total, seed = Figures(), first_seed
    while total.steps < num_steps:
        total.add(Simulation(seed).run())
        seed += 1
    return total
