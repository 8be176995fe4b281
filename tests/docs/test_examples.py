"""Every file in examples/ runs on a real model and prints the expected output."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patience import HANG_SECONDS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(assets: Callable[[str], Path]) -> Callable[..., str]:
    model = assets("smollm2-135m-instruct-q4_1.gguf")

    def run(name: str, *arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), str(model), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text() + (Path(__file__).parents[1] / "on_ray/test_batch.py").read_text()
    assert all(f'"{example.name}"' in here for example in EXAMPLES.glob("*.py"))


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_offline_batch(run: Callable[..., str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The capital of France is\nOne, two, three,\n")
    rows = [json.loads(line) for line in run("offline_batch.py", str(prompts)).splitlines()]
    assert [row["prompt"] for row in rows] == ["The capital of France is", "One, two, three,"]
    assert "Paris" in rows[0]["text"]
    assert "four" in rows[1]["text"]


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_score_choices(run: Callable[..., str]) -> None:
    scores = {
        line.split(" ", 1)[1].strip(): float(line.split()[0]) for line in _rows(run("score_choices.py"))
    }
    assert max(scores, key=scores.__getitem__) == "' Paris'"
    assert min(scores, key=scores.__getitem__) == "' bananas'"


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
def test_async_streams(run: Callable[..., str]) -> None:
    texts = run("async_streams.py").splitlines()
    assert [text[1:8] for text in texts] == ["The sun", "The moo", "A comet"]


def _rows(output: str) -> list[str]:
    return [line.strip() for line in output.splitlines()]
