"""Terminal commands and Python programs for new users run on a real model, in the order of the pages."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.pages import marked
from patience import HANG_SECONDS

# CI sets this to a fresh environment with torch and a plain `pip install .`, like that of a new user.
PYTHON = os.environ.get("OCTAVO_TEST_PYTHON", sys.executable)

TERMINAL, PROGRAMS = marked("terminal"), marked("python")
SAID = {  # a pattern for the output of each command, by a part of the command
    "capital of France": "Paris",
    "inspect": "LlamaForCausalLM",
    "config show": "block_size",
    "--json": '"system_fingerprint"',
}

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("smollm2")]


@pytest.fixture
def environment(assets: Callable[[str], Path]) -> dict[str, str]:
    scripts = Path(PYTHON).parent
    return os.environ | {
        "MODEL": str(assets("smollm2-135m-instruct-q4_1.gguf")),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stderr}"
    return done.stdout


# A command that appears on several pages runs once.
@pytest.mark.parametrize(
    "command",
    dict.fromkeys(command for those in TERMINAL.values() for block in those for command in block.commands),
)
def test_terminal_commands_run(command: str, environment: dict[str, str]) -> None:
    said = run(["bash", "-c", command], environment)
    expected = [words for topic, words in SAID.items() if topic in command]
    assert expected, "add the expected output of this command to SAID"
    assert all(words in said for words in expected), said


@pytest.mark.parametrize("page", PROGRAMS)
def test_python_blocks_run(page: str, environment: dict[str, str]) -> None:
    """The blocks of a page form one program: later blocks use names of earlier ones."""
    said = run([PYTHON, "-c", "".join(block.body for block in PROGRAMS[page])], environment)
    if page == "README.md":
        assert "Paris" in said
    else:
        assert re.search(r"found in the cache: \[0, [1-9]\d+\]", said)
