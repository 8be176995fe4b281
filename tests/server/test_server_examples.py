"""Every file in examples/server/ runs against a server on a real model and prints the expected output."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.conformance.target import read_stream
from octavo.conformance.transport import Reply
from patience import HANG_SECONDS
from server.process import Server

EXAMPLES = Path(__file__).parents[2] / "examples" / "server"

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text()
    assert all(f'"{example.name}"' in here for example in EXAMPLES.iterdir() if example.is_file())


def test_curl(smollm2: Server) -> None:
    whole, _, streamed = run("bash", EXAMPLES / "ask.sh", smollm2.url, "smollm2").partition("\n")
    text = json.loads(whole)["choices"][0]["message"]["content"]
    assert "Paris" in text
    stream = read_stream(Reply(200, {}, streamed.encode()))
    assert stream.is_done
    assert stream.chat_text() == text
    assert stream.events[-1]["usage"] == json.loads(whole)["usage"] | {
        "prompt_tokens_details": stream.events[-1]["usage"]["prompt_tokens_details"]  # cached by then
    }


def test_python(smollm2: Server) -> None:
    lines = run(sys.executable, EXAMPLES / "ask.py", smollm2.url, "smollm2").splitlines()
    assert "Paris" in lines[0]
    assert [line.partition(":")[0] for line in lines[-5:-1]] == ["France", "Italy", "Japan", "Peru"]
    assert lines[-1] == "reproduced: True"


def test_node(smollm2: Server, node_folder: Path) -> None:
    program = shutil.copy(EXAMPLES / "ask.mjs", node_folder)
    answer, refusal = run("node", program, smollm2.url, "smollm2").splitlines()
    assert "Paris" in answer
    assert refusal == "rejected with 400 because of temperature"


def test_langchain(smollm2: Server) -> None:
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    output = run(sys.executable, EXAMPLES / "ask_langchain.py", smollm2.url, "smollm2")
    whole, streamed = output.splitlines()
    assert "Paris" in whole
    assert streamed == whole
