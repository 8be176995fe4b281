"""What the README tells a new user to type works, on a real model, in its order."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)


def blocks(kind: str) -> list[str]:
    found = [body for found_kind, body in BLOCK.findall(README.read_text()) if found_kind == kind]
    assert found, f"the README has no tested {kind} block any more"
    return found


# CI points this at a fresh environment that has torch and a plain `pip install .`, as a new user's has.
PYTHON = os.environ.get("OCTAVO_TEST_PYTHON", sys.executable)


@pytest.fixture
def environment(assets: Callable[[str], Path]) -> dict[str, str]:
    scripts = Path(PYTHON).parent
    return os.environ | {
        "MODEL": str(assets("smollm2-135m-instruct-q4_1.gguf")),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_the_terminal_commands(environment: dict[str, str]) -> None:
    commands = [line.removeprefix("$ ") for block in blocks("terminal") for line in block.splitlines()]
    outputs = {}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        outputs[command] = done.stdout
    completion, chat, inspection, options = outputs.values()
    assert "Paris" in completion
    assert len(chat.split()) > 3
    assert "LlamaForCausalLM" in inspection
    assert "page_size" in options


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_the_python_example(environment: dict[str, str]) -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [PYTHON, "-c", example],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert re.search(r"cached tokens: 0 then 0", done.stdout)  # the prompt is shorter than a page
