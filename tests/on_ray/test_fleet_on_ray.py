"""A fleet on a real Ray cluster: Ray and its nodes fail, and streams go on."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from chaos.network import Received, received, requests_over_http
from data.json_types import Json
from load.wire import ask
from on_ray.ray_cluster import RayCluster, RayFrontEnd, actor_pids, ray_folder, replica_pids, until
from patience import HANG_SECONDS

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

FLEET = "tests"
TOKENS = 300
AT_ONCE = 8
PAUSE = 0.2  # seconds between two streams of a client: Ray needs some of the CPU, too
ENGINE = ("--kv-memory", "8MiB", "--max-model-len", "512", "--grace", "60")


@pytest.fixture
def folder() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


class Load:
    """Streams without a break. Each answer must be that of the same request before any disturbance."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._requests = requests_over_http(TOKENS)
        self._expected: list[Received] = []
        self.num_streams = 0
        self.problems: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def prepare(self) -> None:
        self._expected = [await self._ask(number) for number in range(len(self._requests))]

    def start(self) -> None:
        self._is_ending = False
        self._tasks = [asyncio.create_task(self._keep_asking(number)) for number in range(AT_ONCE)]

    async def end(self) -> None:
        self._is_ending = True
        await asyncio.gather(*self._tasks)

    async def some_more(self, count: int = 2 * AT_ONCE) -> None:
        """Wait until this many further streams have ended."""
        target = self.num_streams + count
        async with asyncio.timeout(2 * HANG_SECONDS):
            while self.num_streams < target and not self.problems:
                await asyncio.sleep(0.05)
        assert not self.problems, self.problems

    async def _keep_asking(self, number: int) -> None:
        while not self._is_ending:
            number = (number + 1) % len(self._requests)
            try:
                if await self._ask(number) != self._expected[number]:
                    self.problems["different"] += 1
            except Exception as error:
                self.problems[repr(error)] += 1
                await asyncio.sleep(0.5)
            self.num_streams += 1
            await asyncio.sleep(PAUSE)

    async def _ask(self, number: int) -> Received:
        path, body = self._requests[number]
        answer = await ask(self._port, path, body)
        assert answer.status == 200, bytes(answer.body)
        return received(bytes(answer.body))


@contextlib.asynccontextmanager
async def loaded(cluster: RayCluster, model: Path) -> AsyncIterator[Load]:
    """A front end of the fleet, and streams that go on the whole time."""
    front_end = RayFrontEnd(cluster, model, FLEET)
    await front_end.until_up()
    load = Load(front_end.port)
    await load.prepare()
    load.start()
    try:
        yield load
        await load.end()
        assert not load.problems, load.problems
        assert list(front_end.problems()) == []
    finally:
        load._is_ending = True
        front_end.process.kill()


def up(cluster: RayCluster, model: Path, *arguments: str) -> str:
    keys = cluster.folder / "keys"
    if not keys.exists():
        assert cluster.octavo("fleet", "keys", str(keys)).returncode == 0
    command = ["fleet", "up", str(model), "--name", FLEET, "--fleet-key", str(keys / "replica.key"), *ENGINE]
    done = cluster.octavo(*command, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def num_ready(cluster: RayCluster) -> int:
    status = cluster.status(FLEET)
    return 0 if status is None else int(status["num_ready"])


def reporting_replicas(cluster: RayCluster) -> list[Json]:
    """Return the state of the replicas whose actors have answered lately."""
    status = cluster.status(FLEET) or {"replicas": []}
    return [one for one in status["replicas"] if one is not None and one["report"]]


def test_streams_survive_actors_nodes_and_the_head(
    folder: Path, tiny_checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster = RayCluster(folder)
    for _ in range(2):
        cluster.add_node(2)
    two = ("--replicas", "2", "--cpus-per-replica", "2", "--threads", "1")
    assert up(cluster, tiny_checkpoint, *two).count(" ready ") == 2

    async def disturb() -> int:
        async with loaded(cluster, tiny_checkpoint) as load:
            await load.some_more()
            await kill_actors(cluster, load)
            await kill_node(cluster, load)
            await kill_head(cluster, load)
            await start_another_cluster(folder, tiny_checkpoint, load, two)
        return load.num_streams

    num_streams = asyncio.run(disturb())
    record_property(
        "load", f"Ray: actors, a node and the head killed, {num_streams} streams, 0 lost, 0 different"
    )
    check_nothing_secret(folder)


async def kill_actors(cluster: RayCluster, load: Load) -> None:
    """The processes of the actors die. Ray starts new ones, which adopt the replicas that run."""
    before = replica_pids()
    actors = actor_pids()
    assert len(actors) == 2
    for pid in actors:
        os.kill(pid, signal.SIGKILL)
    await load.some_more()
    await until(lambda: not set(actors) & set(actor_pids()))
    await until(lambda: num_ready(cluster) == 2)
    assert len(before) == 2
    assert replica_pids() == before
    await load.some_more()


async def kill_node(cluster: RayCluster, load: Load) -> None:
    """A machine is lost with all its processes. Its replica waits for room, and starts on another node."""
    await until(lambda: num_ready(cluster) == 2)
    one, *_ = await until(lambda: reporting_replicas(cluster))
    (pid,) = replica_pids(one["report"]["name"]).values()
    cluster.tell(f"kill {one['node_id']}")
    os.kill(pid, signal.SIGKILL)
    await load.some_more()
    await until(lambda: num_ready(cluster) == 1)
    await asyncio.to_thread(cluster.add_node, 2)
    await until(lambda: num_ready(cluster) == 2)
    assert one["report"]["name"] not in replica_pids()
    await load.some_more()


async def kill_head(cluster: RayCluster, load: Load) -> None:
    """Without the head, the nodes of a cluster end. Replicas go on."""
    before = replica_pids()
    cluster.tell("kill-head")
    await until(lambda: not actor_pids())
    await load.some_more(4 * AT_ONCE)
    assert len(before) == 2
    assert replica_pids() == before
    cluster.close()


async def start_another_cluster(folder: Path, model: Path, load: Load, arguments: tuple[str, ...]) -> None:
    """`octavo fleet up` on a new cluster of the same machines adopts the replicas, which have served all the
    time. Then it ends them."""
    before = replica_pids()
    cluster = await asyncio.to_thread(RayCluster, folder)
    for _ in range(2):
        await asyncio.to_thread(cluster.add_node, 2)
    await asyncio.to_thread(up, cluster, model, *arguments)
    assert replica_pids() == before
    await load.some_more()
    await load.end()
    assert not load.problems, load.problems
    ended = await asyncio.to_thread(cluster.octavo, "fleet", "down", "--name", FLEET)
    assert ended.returncode == 0, ended.stderr
    assert replica_pids() == {}
    cluster.close()


def check_nothing_secret(folder: Path) -> None:
    """Ray has written no key, prompt or seed to any of its files."""
    key = [line for line in (folder / "keys/replica.key").read_text().split() if len(line) == 64]
    body = requests_over_http(TOKENS)[0][1]
    prompt = str(body["prompt"])
    assert key
    assert len(prompt) > 8
    sessions = list((folder / "ray").glob("session_2*"))
    assert len(sessions) >= 2
    for session in sessions:
        for file in session.rglob("*"):
            if file.is_file() and not file.is_symlink():
                content = file.read_bytes()
                assert not any(secret.encode() in content for secret in (*key, prompt)), file


def test_replicas_follow_the_load(
    folder: Path, tiny_checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster = RayCluster(folder)
    for _ in range(2):
        cluster.add_node(2)
    rule = (
        "--replicas",
        "1",
        "--min",
        "1",
        "--max",
        "4",
        "--target-queue",
        "0.01",
        "--scale-down-after",
        "2",
    )
    up(cluster, tiny_checkpoint, *rule, "--cpus-per-replica", "1", "--max-running", "1")

    async def follow() -> list[int]:
        seen = [1]

        def note() -> int:
            ready = num_ready(cluster)
            if ready != seen[-1]:
                seen.append(ready)
            return ready

        async with loaded(cluster, tiny_checkpoint) as load:
            await until(lambda: note() == 4)
            await load.some_more()
            await load.end()
            await until(lambda: note() == 1 and len(replica_pids()) == 1)
        return seen

    seen = asyncio.run(follow())
    record_property("load", f"Ray: replicas over time {seen}")
    assert seen[0] == seen[-1] == 1
    cluster.close()


def test_a_cluster_without_authentication_is_refused(folder: Path, tiny_checkpoint: Path) -> None:
    cluster = RayCluster(folder, mode="disabled")
    keys = folder / "keys"
    cluster.octavo("fleet", "keys", str(keys))
    command = ("fleet", "up", str(tiny_checkpoint), "--fleet-key", str(keys / "replica.key"), "--no-wait")
    refused = cluster.octavo(*command, "--cpus-per-replica", "1")
    assert refused.returncode == 1
    assert "RAY_AUTH_MODE=token" in refused.stderr
    assert cluster.status("octavo") is None
    accepted = cluster.octavo(*command, "--cpus-per-replica", "1", "--allow-unauthenticated")
    assert accepted.returncode == 0, accepted.stderr
    cluster.close()
