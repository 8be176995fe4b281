"""Startup and shutdown of a server: it answers early, ends in order, and leaves no processes or files."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from patience import HANG_SECONDS
from server.held_loading import HeldLoading
from server.process import Server, StartServer, is_alive

pytestmark = pytest.mark.xdist_group("server")

LONG = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True, "seed": 1}


def test_the_front_end_does_not_load_torch(server: Server) -> None:
    def mapped(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    assert "libtorch" not in mapped(server.process.pid)
    assert server.engine_pid is not None
    assert "libtorch" in mapped(server.engine_pid)
    code = "import octavo.server.lifecycle, octavo.cli.serve, sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_the_server_reports_its_progress_while_loading(start: StartServer, tmp_path: Path) -> None:
    loading = HeldLoading(tmp_path)
    server = start(environ=loading.environ)
    seen = []
    while True:
        answer = server.get("/readyz")
        seen.append((answer.status_code, answer.json()["status"]))
        loading.go_on()
        if answer.status_code == 200:
            break
        assert answer.headers["retry-after"] == "1"
        assert server.get("/livez").status_code == 200
        asked = server.post("/v1/completions", {"prompt": "x"})
        assert asked.status_code in (200, 503)
        if asked.status_code == 503:
            assert asked.json()["error"]["code"] == "loading"
            assert int(asked.headers["retry-after"]) >= 1
        time.sleep(0.05)
    assert seen[0] == (503, "starting")
    assert seen[-1] == (200, "ready")
    assert server.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_requests_are_ended_after_the_grace_period(start: StartServer) -> None:
    server = start("--grace", "0", "--max-running", "1").wait_until_ready()
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=LONG | {"n": 8}, timeout=HANG_SECONDS
    ) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        server.terminate()
        text += "".join(pieces)
    assert '"error"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert server.process.wait(HANG_SECONDS) == 0
    assert list(server.temporary.iterdir()) == []


def test_a_second_signal_stops_at_once(start: StartServer) -> None:
    server = start("--grace", "600", "--max-running", "1").wait_until_ready()
    assert server.engine_pid is not None
    os.kill(server.engine_pid, signal.SIGSTOP)  # so that no request finishes
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG, timeout=HANG_SECONDS):
        server.terminate()
        time.sleep(0.3)
        assert server.process.poll() is None
        server.terminate()
        assert server.process.wait(HANG_SECONDS) == 1  # half of the grace period after the first signal
    assert list(server.temporary.iterdir()) == []


def test_sigterm_while_loading(start: StartServer) -> None:
    server = start()
    server.terminate()
    assert server.process.wait(HANG_SECONDS) == 0
    assert list(server.temporary.iterdir()) == []


def test_sigterm_while_loading_hangs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Loading runs in a thread, which cannot be killed, and may wait for a hub that never answers."""
    program = (
        "import sys, time; import octavo.server.serve as serve; from octavo.cli.main import main;"
        f" hang = lambda *_: (print('hangs', flush=True), time.sleep({2 * HANG_SECONDS}));"
        " serve.FORCED_EXIT_SECONDS = 0.1; serve._open = hang;"
        f" sys.exit(main(['serve', {str(tiny_checkpoint)!r}, '--port', '0']))"
    )
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        process.terminate()
        assert process.wait(HANG_SECONDS) == 1
    assert list(tmp_path.glob("octavo-*")) == []


def test_the_engine_exits_when_the_front_end_is_killed(start: StartServer) -> None:
    server = start().wait_until_ready()
    engine = server.engine_pid
    assert engine is not None
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + HANG_SECONDS
    while is_alive(engine) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(engine)


def test_startup_failures_exit_with_a_message(tmp_path: Path, tiny_checkpoint: Path) -> None:
    def serve(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        return done.returncode, done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, words = serve(str(tiny_checkpoint), "--port", str(taken.getsockname()[1]))
        assert code == 2
        assert "cannot listen on 127.0.0.1" in words
    code, words = serve(str(tmp_path), "--port", "0")
    assert code == 1
    assert "neither safetensors nor GGUF" in words
    code, words = serve(str(tiny_checkpoint), "--port", "0", "--kv-memory", "1KiB")
    assert code == 1
    assert "KV" in words
    code, words = serve(str(tiny_checkpoint), "--port", "0", "--api-key-file", str(tmp_path / "none"))
    assert code == 2
    assert "api_key_file" in words
    assert "Traceback" not in words


def test_a_public_server_without_a_key_logs_a_warning(start: StartServer) -> None:
    server = start("--host", "0.0.0.0")
    server.wait_for_log("every client that can reach")
    assert not re.search("every client that can reach", start("--host", "0.0.0.0", "--api-key", "k").log)


def test_keys_over_http(start: StartServer) -> None:
    server = start(environ={"OCTAVO_API_KEY": "the-key"}).wait_until_ready()
    assert server.client(api_key="the-key").models.list().data
    assert server.get("/v1/models").status_code == 401
    assert server.get("/readyz").status_code == 200
    assert "the-key" not in server.log


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_https(start: StartServer, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout {key} -out {certificate}"
    )
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    server = start("--tls-cert", str(certificate), "--tls-key", str(key)).wait_until_ready()
    trusted = ssl.create_default_context(cafile=str(certificate))
    answer = httpx.get(f"https://127.0.0.1:{server.port}/v1/models", verify=trusted, timeout=HANG_SECONDS)
    assert answer.status_code == 200
    with pytest.raises(httpx.TransportError):
        server.get("/v1/models")


def test_the_port_answers_soon_after_start(tiny_checkpoint: Path, figure: Callable[[str], None]) -> None:
    """The limit is relative to the time that Python needs for the imports alone, measured alternately, since
    machines differ in speed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "octavo.cli.main", "serve", str(tiny_checkpoint), "--port", str(port)]
    took, imports = [], []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", "import asyncio, pydantic, msgspec; pydantic.BaseModel"], check=True
        )
        imports.append(time.monotonic() - started)
        started = time.monotonic()
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    assert (
                        httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=HANG_SECONDS).status_code == 503
                    )
                    break
                except httpx.TransportError:
                    time.sleep(0.005)
            took.append(time.monotonic() - started)
        finally:
            process.terminate()
            process.wait(HANG_SECONDS)
    figure(f"the port answers after {min(took):.2f} s, the imports alone take {min(imports):.2f} s")
    assert min(took) < 2 * 3 * min(imports)
