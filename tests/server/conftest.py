"""Servers as people start them: the command, in a process of its own, on a free port."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo.checkpoint import open_checkpoint
from octavo.server.state import ServedModel
from server.null_bench import on_null_engine

START_SECONDS = 60
INSTALL_SECONDS = 60


class Server:
    """`octavo serve` and what is known of it. Always stopped in the end."""

    def __init__(self, folder: Path, model: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        self.log_path = folder / f"server-{time.monotonic_ns()}.log"
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short: sockets have short names
        command = [sys.executable, "-m", "octavo.cli.main", "serve", str(model), "--port", "0", *flags]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(self.temporary)} | (environ or {}),
            )
        self.port = int(self.wait_for_log(r"listening on \S+, port (\d+)")[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for_log(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.log):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise AssertionError(f"{pattern!r} is not in the log of the server:\n{self.log}")

    def wait_until_ready(self) -> "Server":
        self.wait_for_log("is ready at")
        return self

    def post(self, path: str, body: Any, **keywords: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **keywords)

    def get(self, path: str, **keywords: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **keywords)

    def client(self, **keywords: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0} | keywords)

    def async_client(self, **keywords: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0} | keywords
        )

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)  # twice: at once
        try:
            self.process.wait(20)
            shutil.rmtree(self.temporary)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


StartServer = Callable[..., Server]


@pytest.fixture
def start(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[StartServer]:
    """`start("--flag", ...)` is a server on the tiny model, which may not be ready yet."""
    servers: list[Server] = []

    def start(*flags: str, model: Path = tiny_checkpoint, environ: dict[str, str] | None = None) -> Server:
        servers.append(Server(tmp_path, model, "--kv-memory", "4MiB", *flags, environ=environ))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the tiny model for all tests that do not mind each other."""
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
    """A server on a model that can talk."""
    flags = ("--kv-memory", "256MiB", "--max-model-len", "1024", "--dtype", "bfloat16")
    model = assets("smollm2-135m-instruct-q4_1.gguf")
    running = Server(tmp_path_factory.mktemp("smollm2"), model, "--served-model-name", "smollm2", *flags)
    try:
        yield running.wait_until_ready()
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint: Path) -> ServedModel:
    """The text side of the tiny model."""
    return ServedModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), "tiny", 0)


@pytest.fixture
def run_null(tiny_model: ServedModel) -> Callable[..., None]:
    """Runs a test of the application on an engine that computes nothing."""
    return lambda test: asyncio.run(on_null_engine(tiny_model, test))


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where programs for Node find their packages, if Node is here and those can be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    folder = tmp_path_factory.mktemp("node")
    packages = ["openai", "ai", "@ai-sdk/openai-compatible"]
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install the packages in time")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the packages: {done.stderr.strip()[-200:]}")
    return folder
