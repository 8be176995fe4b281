"""Servers and clients for the tests of this folder."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from data.json_types import Json
from octavo.checkpoint import open_checkpoint
from octavo.frontend.text_model import TextModel
from patience import HANG_SECONDS
from server.keyed_bench import KEY_FILE, KeyedBench, RunKeyed
from server.null_bench import Bench, RunNull, on_null_engine
from server.process import Server, StartServer
from server.recording import take_problems


@pytest.fixture
def start(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[StartServer]:
    """`start("--flag", ...)` starts a server on the tiny model and does not wait until it is ready."""
    with contextlib.ExitStack() as servers:

        def start(
            *flags: str, model: Path = tiny_checkpoint, environ: dict[str, str] | None = None
        ) -> Server:
            server = Server(tmp_path, model, "--kv-memory", "4MiB", *flags, environ=environ)
            servers.callback(server.stop)
            return server

        yield start


@pytest.fixture(autouse=True)
def accepted_requests_conform() -> Iterator[None]:
    """Check that requests accepted by applications in this process conform to their description."""
    take_problems()
    yield
    problems = take_problems()
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the tiny model, shared by all tests that do not affect each other."""
    flags = ("--kv-memory", "4MiB", "--served-model-name", "tiny")
    running = Server(tmp_path_factory.mktemp("server"), tiny_checkpoint, *flags)
    try:
        yield running.wait_until_ready()
        assert running.process.poll() is None, running.log
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


@pytest.fixture(scope="session")
def smollm2(assets: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a real model, in float32: bfloat16 may change its first word, which is nearly a tie."""
    flags = ("--kv-memory", "256MiB", "--max-model-len", "1024", "--dtype", "float32")
    model = assets("smollm2-135m-instruct-q4_1.gguf")
    running = Server(tmp_path_factory.mktemp("smollm2"), model, "--served-model-name", "smollm2", *flags)
    try:
        yield running.wait_until_ready()
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint: Path) -> TextModel:
    """The text side of the tiny model."""
    return TextModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), "tiny")


@pytest.fixture
def run_null(tiny_model: TextModel) -> RunNull:
    """Run a test of the application on an engine that computes nothing."""

    def run(test: Callable[[Bench], Awaitable[None]], *, num_replicas: int = 1, **options: float) -> None:
        asyncio.run(on_null_engine(tiny_model, test, num_replicas=num_replicas, **options))

    return run


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the Node programs; skips if Node or the packages are unavailable."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    folder = tmp_path_factory.mktemp("node")
    packages = ["openai", "zod", "@anthropic-ai/sdk", "ai"]
    packages += [f"@ai-sdk/{name}" for name in ("openai-compatible", "openai", "anthropic")]
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install the packages in time")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the packages: {done.stderr.strip()[-200:]}")
    return folder


@pytest.fixture
def run_keyed(run_null: RunNull, tmp_path: Path) -> RunKeyed:
    def run(test: Callable[[KeyedBench], Json], content: str = KEY_FILE, **options: float) -> None:
        async def on_bench(bench: Bench) -> None:
            await test(KeyedBench(bench, tmp_path / "keys", content))

        run_null(on_bench, num_replicas=1, **options)

    return run
