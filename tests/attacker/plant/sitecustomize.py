"""Plants a bug in every process of a server: Python runs this file at its start if it is on PYTHONPATH.

PLANTED_BUG is JSON: the module, the method (`Class.method`, or a function), the text that is right and
the text that is wrong. The source of the module is edited when it is imported, so that `super()` and names of
the module work in the edited method. This file must not import anything else of the project.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

VARIABLE = "PLANTED_BUG"
NO_PLACE = "the code has changed, so rewrite the planted bug"


def edited(source: str, method: str, right: str, wrong: str) -> str:
    """Return the source with `right` replaced in one method, in which it must occur exactly once."""
    nodes: list[ast.stmt] = ast.parse(source).body
    found: ast.stmt | None = None
    for name in method.split("."):
        found = next((node for node in nodes if getattr(node, "name", None) == name), None)
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            raise LookupError(f"there is no {method}: {NO_PLACE}")
        nodes = found.body
    assert found is not None
    lines = source.splitlines(keepends=True)
    before, after = lines[: found.lineno - 1], lines[found.end_lineno :]
    text = "".join(lines[found.lineno - 1 : found.end_lineno])
    if text.count(right) != 1:
        raise LookupError(f"{right!r} occurs {text.count(right)} times in {method}: {NO_PLACE}")
    return "".join([*before, text.replace(right, wrong), *after])


class EditingLoader(importlib.machinery.SourceFileLoader):
    """Compiles the edited source, and neither reads nor writes cached bytecode."""

    def __init__(self, fullname: str, path: str, bug: dict[str, str]) -> None:
        super().__init__(fullname, path)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        bug = self._bug
        return compile(edited(source, bug["method"], bug["right"], bug["wrong"]), self.path, "exec")


class EditingFinder(importlib.abc.MetaPathFinder):
    def __init__(self, bug: dict[str, str]) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._bug["module"]:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.origin is not None:
                loader = EditingLoader(fullname, spec.origin, self._bug)
                return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)
        return None


def install() -> None:
    written = os.environ.get(VARIABLE)
    if written:
        sys.meta_path.insert(0, EditingFinder(json.loads(written)))


install()
