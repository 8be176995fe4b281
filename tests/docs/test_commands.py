"""What the pages tell a new user to type, or to run in Python, works on a real model, in its order."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.pages import marked
from patience import HANG_SECONDS

# CI points this at a fresh environment that has torch and a plain `pip install .`, as a new user's has.
PYTHON = os.environ.get("OCTAVO_TEST_PYTHON", sys.executable)

TERMINAL, PROGRAMS = marked("terminal"), marked("python")
SAID = {  # what the output of a command must hold, by what the command is about
    "capital of France": "Paris",
    "inspect": "LlamaForCausalLM",
    "config show": "page_size",
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


# A command that several pages show is run once.
@pytest.mark.parametrize(
    "command",
    dict.fromkeys(command for those in TERMINAL.values() for block in those for command in block.commands),
)
def test_terminal(command: str, environment: dict[str, str]) -> None:
    said = run(["bash", "-c", command], environment)
    expected = [words for topic, words in SAID.items() if topic in command]
    assert expected, "say what this command must print, in SAID"
    assert all(words in said for words in expected), said


@pytest.mark.parametrize("page", PROGRAMS)
def test_python(page: str, environment: dict[str, str]) -> None:
    """The programs of a page are one: the later ones use what the earlier ones define."""
    said = run([PYTHON, "-c", "".join(block.body for block in PROGRAMS[page])], environment)
    if page == "README.md":
        assert "Paris" in said
    else:
        assert re.search(r"found in the cache: \[0, [1-9]\d+\]", said)
