"""One attack: a server, honest and hostile actors, faults, and the checks during and after it."""

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from attacker import hostile_bytes as raw
from attacker import hostile_requests as api
from attacker import hostile_surfaces as surfaces
from attacker.attack import IS_HOSTILE, Actor, Attack, Settings
from attacker.baseline import Held, check_baseline, check_large_requests, look
from attacker.connections import watch_connections
from attacker.faults import FAULTS, Fault, cause_faults, fill_disk, until_ready
from attacker.findings import Findings, Invariant
from attacker.fleet_faults import FLEET_FAULTS, fill_disk_of_agent
from attacker.honest import HonestRequest, HonestTenant, find_references, honest_tasks
from attacker.hostile_peers import impersonate, knock
from attacker.processes import AttackedFleet, AttackedServer, small_disk
from attacker.shares import Shares
from attacker.tenants import TenantKey, Tenants
from attacker.wire import Abandoned, Client, get

NUM_REQUESTS = 8
NUM_FLOODERS = 2  # so that one has requests in flight while the other waits for its last one
FAULTY_PART = 0.6  # of a round; then faults end, so that leaks of the last engine show
REPORT_SECONDS = 5.0
POLL = 0.1
GRACE = 10.0  # seconds after the end; then hostile requests are awaited only until they make progress

Action = Callable[[Actor], Awaitable[None]]

# Actions with their weights. Those that wait for the engine have other actors than the fast ones.
SLOW_ACTIONS: tuple[tuple[Action, int], ...] = (
    (api.flood, 8),
    (api.hurry, 3),
    (api.ask_for_logprobs, 2),
    (api.stop_early, 2),
    (api.long_prompts, 3),
    (api.hostile_grammars, 3),
    (api.guess_prefixes, 4),
    (api.exceed_streams, 2),
    (api.exceed_requests, 1),
    (surfaces.other_apis, 4),
    (surfaces.stored_responses, 2),
    (raw.disconnect_anywhere, 6),
    (raw.slow_reader, 2),
)
FAST_ACTIONS: tuple[tuple[Action, int], ...] = (
    (api.malformed_bodies, 3),
    (api.nested_bodies, 1),
    (api.forbidden_views, 1),
    (raw.disconnect_anywhere, 4),
    (raw.endless_framing, 2),
    (raw.trailers, 4),
    (raw.wrong_keys, 2),
    (raw.strange_heads, 4),
    (raw.pipeline, 2),
    (raw.unread_answers, 1),
    (raw.silent_connections, 1),
    (raw.send_slowly, 1),
)
# The first actions of the first actors, so that every attack has them.
FIRST_ACTIONS: tuple[Action, ...] = (surfaces.stored_responses, surfaces.other_apis)
FLEET_ACTIONS: tuple[tuple[Action, int], ...] = ((knock, 5), (impersonate, 3))


@dataclasses.dataclass
class Outcome:
    """The result of a run. `summary` is for people."""

    findings: Findings
    summary: str
    log: str  # of the server

    @property
    def is_clean(self) -> bool:
        return not self.findings.violations


def run(
    model: Path, folder: Path, settings: Settings, log_path: Path, environ: dict[str, str] | None = None
) -> Outcome:
    """Start a server, attack it and stop it. `environ` is added to the environment of the server."""
    tenants = Tenants.of_number(settings.num_tenants)
    prefix = small_disk(folder) if settings.has_faults else ()
    if settings.has_faults and not prefix:
        print("no disk can be mounted here: the attack runs without a full disk")
    findings = Findings(log_path)
    server = _start(model, folder, settings, prefix=prefix, environ=environ)
    try:
        server.wait_until_ready()
        print(f"{findings.seconds:7.1f} s: the server is ready", flush=True)
        attack_whole = Run(server, tenants, settings, findings, has_small_disk=bool(prefix))
        summary = asyncio.run(attack_whole.run())
        if "Traceback" in server.whole_log:
            trace = server.whole_log.partition("Traceback")[2][:1500]
            findings.violate(Invariant.NO_SERVER_ERROR, f"the server logged a traceback{trace}")
        return Outcome(findings, summary, server.log)
    finally:
        findings.close()
        server.stop()


def _start(
    model: Path,
    folder: Path,
    settings: Settings,
    *,
    prefix: Sequence[str],
    environ: dict[str, str] | None,
) -> AttackedServer:
    start = partial(AttackedFleet, num_agents=settings.num_agents) if settings.num_agents else AttackedServer
    tenants = Tenants.of_number(settings.num_tenants)
    return start(folder, model, tenants, *settings.flags, prefix=prefix, environ=environ)


class Run:
    """All rounds of one attack on one server."""

    def __init__(
        self,
        server: AttackedServer,
        tenants: Tenants,
        settings: Settings,
        findings: Findings,
        *,
        has_small_disk: bool,
    ) -> None:
        self._server = server
        self._tenants = tenants
        self._settings = settings
        self._findings = findings
        self._has_small_disk = has_small_disk
        self._num_answers = self._num_equal = 0
        self._lowest_share: float | None = None
        generator = random.Random(f"{settings.seed}:honest requests")
        self._requests = [HonestRequest(number, generator) for number in range(NUM_REQUESTS)]

    async def run(self) -> str:
        before = await self._warm_up()
        rounds = max(1, round(self._settings.seconds / self._settings.round_seconds))
        for number in range(rounds):
            if not await self._round(number, self._settings.seconds / rounds, before):
                break
        return self._summary()

    async def _warm_up(self) -> Held:
        """Compute the references, start every helper process, and return what the idle server holds."""
        attack = self._attack(0)
        await until_ready(attack)  # all replicas of a fleet
        await find_references(attack, self._requests)
        print(f"{self._findings.seconds:7.1f} s: the reference answers are known", flush=True)
        honest = HonestTenant(attack, self._tenants.honest[0], self._requests)
        await asyncio.gather(*(honest.ask(one, stream=one.may_stream) for one in self._requests))
        await check_large_requests(attack)  # starts the worker for long prompts
        held = None
        while held is None or held.running or held.queued:
            held = await look(attack)
        attack.close()
        return held

    def _attack(self, number: int) -> Attack:
        """Return the shared state of one round, whose generators differ from those of other rounds."""
        seed = self._settings.seed + 1000 * number
        settings = dataclasses.replace(self._settings, seed=seed)
        return Attack(self._server, self._tenants, settings, self._findings)

    async def _round(self, number: int, seconds: float, before: Held) -> bool:
        """Attack for some time and check what is left. Returns whether to continue."""
        attack = self._attack(number)
        honest = [HonestTenant(attack, tenant, self._requests) for tenant in self._tenants.honest]
        shares = Shares(attack, honest)
        tasks = [
            *honest_tasks(honest),
            *self._hostile_tasks(attack),
            asyncio.create_task(shares.watch(), name="shares"),
            asyncio.create_task(_probe(attack), name="probe"),
            asyncio.create_task(watch_connections(attack), name="connections"),
        ]
        if self._settings.has_faults:
            faults = cause_faults(attack, seconds * FAULTY_PART, self._faults(number))
            tasks.append(asyncio.create_task(faults, name="faults"))
        ends_at, report_at = time.monotonic() + seconds, 0.0
        while time.monotonic() < ends_at and not attack.has_ended:
            if time.monotonic() > report_at:
                report_at = time.monotonic() + REPORT_SECONDS
                print(self._progress(attack, honest), flush=True)
            await attack.pause(POLL)
            self._check_actors(attack, tasks)
        attack.is_over.set()
        await self._finish(attack, tasks)
        self._num_answers += attack.num_answers
        self._num_equal += sum(tenant.num_equal for tenant in honest)
        if shares.lowest is not None:
            self._lowest_share = min(shares.lowest, self._lowest_share or shares.lowest)
        if not attack.is_decided and self._server.problem is None:
            await check_baseline(attack, before)
            await check_large_requests(attack)
        attack.close()
        return not attack.is_decided and self._server.problem is None

    def _faults(self, number: int) -> Sequence[tuple[Fault, int]]:
        """Return the faults of a round with their weights. In a fleet, each round begins with another one."""
        faults, of_disk = (FLEET_FAULTS, fill_disk_of_agent) if self._server.agents else (FAULTS, fill_disk)
        faults = (*faults, (of_disk, 1)) if self._has_small_disk else faults
        first = number % len(faults) if self._server.agents else 0
        return faults[first:] + faults[:first]

    def _hostile_tasks(self, attack: Attack) -> list["asyncio.Task[None]"]:
        tenants = self._tenants.hostile
        return [
            asyncio.create_task(
                _be_hostile(attack, number, tenants[number % len(tenants)]), name=f"hostile/{number}"
            )
            for number in range(self._settings.num_hostile_actors)
        ] + [
            asyncio.create_task(_flood(attack, number), name=f"flooder/{number}")
            for number in range(NUM_FLOODERS)
        ]

    def _check_actors(self, attack: Attack, tasks: list["asyncio.Task[None]"]) -> None:
        """Raise the error of an actor that failed, and report a server that has exited."""
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise RuntimeError(f"the actor {task.get_name()} failed") from task.exception()
        if self._server.problem is not None:
            attack.findings.violate(Invariant.NO_SERVER_ERROR, self._server.problem)
            attack.is_over.set()

    async def _finish(self, attack: Attack, tasks: list["asyncio.Task[None]"]) -> None:
        """Wait for all actors. A request is hung if no client receives anything but pings for long."""
        changed_at = over_at = time.monotonic()
        last, content_at_end = (
            -1,
            {number: one.client.num_content for number, one in attack.in_flight.items()},
        )
        patience = 0.0 if attack.is_decided else self._settings.patience
        while not all(task.done() for task in tasks):
            received = sum(one.client.num_content for one in attack.in_flight.values())
            received += 1_000_003 * attack.num_answers
            if received != last:
                last, changed_at = received, time.monotonic()
            if time.monotonic() - over_at > GRACE:
                _abandon_progressing(attack, content_at_end)
            if time.monotonic() - changed_at > patience:
                waiting = [f"{one.note} ({_seconds(one.client):.0f} s)" for one in attack.in_flight.values()]
                if not attack.is_decided:
                    text = f"{len(waiting)} requests have no terminal event: {'; '.join(waiting)[:800]}"
                    attack.findings.violate(Invariant.ENDS_AS_DOCUMENTED, text)
                break
            await asyncio.sleep(POLL)
            self._check_actors(attack, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _progress(self, attack: Attack, honest: list[HonestTenant]) -> str:
        counts = self._findings.counts
        num_equal = self._num_equal + sum(tenant.num_equal for tenant in honest)
        return (
            f"{self._findings.seconds:7.1f} s: {self._num_answers + attack.num_answers} responses checked,"
            f" {num_equal} answers equal to their solo run, {counts['kills']} kills,"
            f" {len(attack.in_flight)} connections, {len(self._findings.violations)} violations"
        )

    def _summary(self) -> str:
        counts = self._findings.counts
        actions = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        share = "not measured" if self._lowest_share is None else f"{self._lowest_share:.0%}"
        return (
            f"seed {self._settings.seed}: {self._num_answers} responses checked, {self._num_equal} answers"
            f" equal to their solo run, {counts['kills']} kills, smallest part of a share {share},"
            f" {len(self._findings.violations)} violations\n{actions}"
        )


async def _be_hostile(attack: Attack, number: int, tenant: TenantKey) -> None:
    IS_HOSTILE.set(True)
    actor = Actor(attack, f"hostile/{number}", tenant)
    weighted = FAST_ACTIONS if number % 3 == 2 else SLOW_ACTIONS
    if attack.server.agents and weighted is FAST_ACTIONS:
        weighted += FLEET_ACTIONS
    actions, weights = [action for action, _ in weighted], [weight for _, weight in weighted]
    first = actor.random.sample(actions, len(actions))  # so that a short attack has actions of every kind
    first += FIRST_ACTIONS[number : number + 1]
    while not attack.has_ended:
        action = first.pop() if first else actor.random.choices(actions, weights)[0]
        with contextlib.suppress(ConnectionError, Abandoned):
            await action(actor)
        await attack.pause(actor.random.uniform(0, 0.1))


async def _flood(attack: Attack, number: int) -> None:
    IS_HOSTILE.set(True)
    actor = Actor(attack, f"flooder/{number}", attack.tenants.flooder)
    while not attack.has_ended:
        with contextlib.suppress(ConnectionError, Abandoned):
            await api.urge(actor)


async def _probe(attack: Attack) -> None:
    """Check that the server reports to be live. While an engine is stopped, it may report the opposite."""
    while not attack.has_ended:
        began = time.monotonic()
        async with attack.connected("liveness probe") as client:
            await client.send(get("/livez", None))
            await client.replied()
            reply = client.replies[0] if client.replies else None
        is_live = reply is not None and reply.status == 200
        # The front end of a fleet is live without any engine.
        is_explained = not attack.server.agents and attack.faults.count("engine", "disk", since=began) > 0
        if not is_live and not is_explained:
            status = "no reply" if reply is None else f"status {reply.status}"
            attack.findings.violate(Invariant.NO_SERVER_ERROR, f"/livez: {status}")
        await attack.pause(0.25)


def _abandon_progressing(attack: Attack, content_at_end: dict[int, int]) -> None:
    """Disconnect hostile clients that have received something since the end: these requests are not lost."""
    for number, one in list(attack.in_flight.items()):
        if one.is_hostile and one.client.num_content > content_at_end.get(number, 0):
            one.client.abandon()


def _seconds(client: Client) -> float:
    return time.monotonic() - client.opened_at
