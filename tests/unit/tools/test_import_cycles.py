"""The check for import cycles, as in `make cycles`, on small generated packages."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "import_cycles.py"


def check(source: Path, modules: dict[str, str]) -> tuple[int, list[str]]:
    """Return the exit code and the reported cycles."""
    for name, text in {"__init__": "", **modules}.items():
        path = source / "planted" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--source", str(source), "--package", "planted"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stderr.splitlines()
    assert all(line.startswith("error: import cycle: ") for line in lines), result.stderr
    return result.returncode, [line.removeprefix("error: import cycle: ").split(". ")[0] for line in lines]


@pytest.mark.parametrize(
    "back",
    [
        "from planted import first",
        "import planted.first",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted.first import First",
        "def work() -> None:\n    from planted.first import First",
    ],
    ids=["from", "import", "for type checkers", "inside a function"],
)
def test_a_cycle_is_printed(tmp_path: Path, back: str) -> None:
    modules = {"first": "from planted import second", "second": "from planted import third", "third": back}
    modules["other"] = "from planted import first, second, third"
    code, (cycle,) = check(tmp_path, modules)
    assert code == 1
    path = cycle.split(" -> ")
    assert path[0] == path[-1]
    follows = {"planted.first": "planted.second", "planted.second": "planted.third"}
    follows["planted.third"] = "planted.first"
    assert [follows[name] for name in path[:-1]] == path[1:]
    assert len(path) == 4


def test_two_cycles_are_both_printed(tmp_path: Path) -> None:
    modules = {
        "a": "import planted.b",
        "b": "import planted.a",
        "c": "import planted.d",
        "d": "import planted.c",
    }
    code, found = check(tmp_path, modules)
    assert code == 1
    assert sorted(sorted(set(cycle.split(" -> "))) for cycle in found) == [
        ["planted.a", "planted.b"],
        ["planted.c", "planted.d"],
    ]


def test_a_diamond_is_not_a_cycle(tmp_path: Path) -> None:
    modules = {"top": "from planted import left, right", "left": "import planted.base", "base": "import json"}
    modules["right"] = "def work() -> None:\n    import planted.base"
    assert check(tmp_path, modules) == (0, [])
