"""A bug to plant: a text replacement in the source of one method, or of one function of a module.

It reads like the diff that might introduce the bug.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class PlantedBug:
    name: str
    owner: type | ModuleType  # functions of a module must be called as `module.function` to be replaced
    method: str
    right: str  # must occur exactly once in the source of the method
    wrong: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        original = self.owner.__dict__[self.method]
        setattr(self.owner, self.method, self._mutant(original))
        try:
            yield
        finally:
            setattr(self.owner, self.method, original)

    def _mutant(self, original: Callable[..., Any]) -> Callable[..., Any]:
        source = textwrap.dedent(inspect.getsource(original))
        if source.count(self.right) != 1:
            raise LookupError(
                f"planted bug {self.name!r}: {self.right!r} does not occur exactly once in "
                f"{self.owner.__name__}.{self.method}; the code has changed, so rewrite the bug"
            )
        namespace = vars(sys.modules[original.__module__]).copy()
        exec(compile(source.replace(self.right, self.wrong), f"<planted: {self.name}>", "exec"), namespace)
        mutant: Callable[..., Any] = namespace[self.method]
        return mutant
