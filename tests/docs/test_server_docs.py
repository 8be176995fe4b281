"""The requests on the pages work with a server that has a real model."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from docs.pages import marked
from patience import HANG_SECONDS
from server.recording import octavo_command, problems_in

DEFAULT_ADDRESS = "127.0.0.1:8000"

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]


@pytest.fixture(scope="module")
def address(assets: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server as on the page, except for the port. Its API description must accept every request."""
    requests = tmp_path_factory.mktemp("docs") / "server.requests"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    serving = [block for those in marked("serve").values() for block in those]
    (command,) = {re.sub(" --port 8000", "", block.commands[0]) for block in serving}
    arguments = command.replace("$MODEL", str(assets("smollm2-135m-instruct-q4_1.gguf"))).split()[1:]
    port = ["--port", address.partition(":")[2], "--kv-memory", "256MiB"]
    process = subprocess.Popen([*octavo_command(requests), *arguments, *port])
    try:
        wait_until_ready(process, address)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert requests.exists(), "no request was recorded"
    assert problems_in(requests) == []


def wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urlopen(f"http://{address}/readyz").close()
            return
        except URLError:
            time.sleep(0.05)
    raise AssertionError("the server is not ready")


@pytest.mark.parametrize("page", marked("curl"))
def test_curl_examples_run(page: str, address: str) -> None:
    for command in [command for block in marked("curl")[page] for command in block.commands]:
        done = subprocess.run(
            ["bash", "-c", command.replace(DEFAULT_ADDRESS, address)],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        )
        assert "Paris" in done.stdout or '"count":' in done.stdout, done.stdout


@pytest.mark.parametrize("page", marked("client"))
def test_python_client_example_runs(page: str, address: str) -> None:
    assert "Paris" in said("client", page, address)


def test_resume_example_runs(address: str) -> None:
    assert said("resume", "docs/server.md", address).strip()


def said(kind: str, page: str, address: str, model: str = "") -> str:
    """Run a program from a page and return its output."""
    (program,) = [block.body for block in marked(kind)[page]]
    done = subprocess.run(
        [sys.executable, "-c", program.replace(DEFAULT_ADDRESS, address).replace("smollm2.gguf", model)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_structured_output_example_runs(address: str) -> None:
    city, colours, number = said("structured", "docs/structured-output.md", address).splitlines()
    assert re.fullmatch(r"name='.*' country='.*' population=-?\d+", city)
    assert len(re.findall("'(red|green|blue)'", colours)) == 2
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", number)


def test_offline_objects_example_runs(assets: Callable[[str], Path]) -> None:
    model = str(assets("smollm2-135m-instruct-q4_1.gguf"))
    assert re.search(r"\d\n$", said("offline", "docs/structured-output.md", DEFAULT_ADDRESS, model))


def test_tools_example_runs(address: str) -> None:
    call = said("tools", "docs/structured-output.md", address).splitlines()[0]
    assert re.fullmatch(r"(add|multiply) -?[0-9.e+-]+ -?[0-9.e+-]+", call)
