"""OpenAI's client for Node, if Node is here and the package can be had."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("server")

INSTALL_SECONDS = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in a folder where `openai` is installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    folder = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), "openai"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install openai in time")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install openai: {done.stderr.strip()[-200:]}")
    copied = folder / "client.mjs"
    shutil.copy(Path(__file__).parent / "client.mjs", copied)
    return copied


def test_the_node_client(server: Any, program: Path) -> None:
    done = subprocess.run(
        ["node", str(program)],
        env=os.environ | {"URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    first, second = seen["chat"]["choices"]
    assert seen["streamed"] == seen["put_together"] == first["message"]["content"]
    assert first["message"]["content"] != second["message"]["content"]
    assert len(first["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert (seen["finish"], seen["usage"]["completion_tokens"]) == ("length", 12)
    assert [choice["text"][:2] for choice in seen["completion"]["choices"]] == ["ab", "cd"]
    assert seen["models"] == ["tiny"]
    assert seen["refused"] == {"kind": "BadRequestError", "status": 400, "param": "temperature"}
