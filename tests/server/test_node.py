"""OpenAI's client for Node, if Node is here and the package can be had."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("server")


@pytest.fixture
def program(node_folder: Path) -> Path:
    """The client, where it finds `openai`."""
    return Path(shutil.copy(Path(__file__).parent / "client.mjs", node_folder))


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
