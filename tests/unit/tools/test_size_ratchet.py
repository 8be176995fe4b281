"""The size ratchet, as in `make sizes`, on small generated projects."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "size_ratchet.py"


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, source: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def list_sizes(self, **entries: dict[str, int]) -> None:
        self.write("tools/size_ratchet.json", json.dumps(entries))

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--root", str(self.root)],
            capture_output=True,
            text=True,
            check=False,
        )

    def assert_passes(self) -> None:
        result = self.check()
        assert (result.returncode, result.stderr) == (0, "")

    def assert_fails_only_with(self, *parts: str) -> None:
        result = self.check()
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        for part in parts:
            assert part in line


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def file_of(lines: int) -> str:
    return "x = 1\n" * lines


def function_of(lines: int, name: str = "long") -> str:
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize("folder", ["src/octavo", "tests/unit", "tools", "benchmarks"])
def test_a_file_may_have_500_lines_and_not_501(project: Project, folder: str) -> None:
    project.write(f"{folder}/large.py", file_of(500))
    project.assert_passes()
    project.write(f"{folder}/large.py", file_of(501))
    project.assert_fails_only_with(f"{folder}/large.py", "501", "500")


def test_other_files_are_not_measured(project: Project) -> None:
    project.write("docs/large.py", file_of(900))
    project.write("src/large.txt", file_of(900))
    project.assert_passes()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{body}", "long"),
        ("async {body}", "long"),
        ("class Engine:\n    if True:\n{indented}", "Engine.long"),
        ("if True:\n    class Outer:\n        class Inner:\n            x = 1\n\n{body}", "long"),
    ],
)
def test_a_function_may_have_60_lines_and_not_61(project: Project, source: str, name: str) -> None:
    for lines, passes in ((60, True), (61, False)):
        body = function_of(lines)
        indented = "".join(f"        {line}\n" for line in body.splitlines())
        project.write("src/a.py", source.format(body=body, indented=indented))
        if passes:
            project.assert_passes()
        else:
            project.assert_fails_only_with(f"src/a.py::{name}:", "61", "60")


def test_decorators_count_and_the_larger_of_two_equal_names_is_reported(project: Project) -> None:
    project.write("src/a.py", f"@f\n@f\n{function_of(59)}\n\n{function_of(3)}")
    project.assert_fails_only_with("src/a.py::long", "61")


def test_a_nested_function_is_measured_inside_its_parent(project: Project) -> None:
    nested = "".join(f"    {line}\n" for line in function_of(61, "inner").splitlines())
    project.write("src/a.py", f"def outer():\n{nested}")
    project.list_sizes(functions={"src/a.py::outer": 62})
    project.assert_fails_only_with("src/a.py::outer.inner", "61")


@pytest.mark.parametrize(
    ("kind", "name", "source", "limit"),
    [("files", "src/a.py", file_of, 500), ("functions", "src/a.py::long", function_of, 60)],
)
def test_an_entry_may_only_shrink(
    project: Project, kind: str, name: str, source: Callable[[int], str], limit: int
) -> None:
    project.list_sizes(**{kind: {name: limit + 20}})
    project.write("src/a.py", source(limit + 20))
    project.assert_passes()
    project.write("src/a.py", source(limit + 21))
    project.assert_fails_only_with(name, str(limit + 21), "only shrink")
    project.write("src/a.py", source(limit + 5))
    project.assert_fails_only_with(name, str(limit + 5), "lower its entry")
    project.write("src/a.py", source(limit))
    project.assert_fails_only_with(name, "delete its entry")
    (project.root / "src/a.py").unlink()
    project.assert_fails_only_with(name, "delete its entry")


def test_the_five_largest_are_printed_largest_first(project: Project) -> None:
    for lines in range(10, 17):
        project.write(f"src/of_{lines}.py", function_of(lines))
    printed = project.check().stdout.splitlines()
    expected = [16, 15, 14, 13, 12]
    assert [line.split() for line in printed] == [
        ["largest", "files:"],
        *([str(lines), f"src/of_{lines}.py"] for lines in expected),
        ["largest", "functions:"],
        *([str(lines), f"src/of_{lines}.py::long"] for lines in expected),
    ]


def test_all_violations_are_reported_together(project: Project) -> None:
    project.write("src/a.py", file_of(501))
    project.write("src/b.py", function_of(61))
    assert len(project.check().stderr.splitlines()) == 2
