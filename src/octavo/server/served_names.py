"""The names under which clients ask for the model. Some applications ask for names that they know."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from octavo.errors import ConfigError

ANY = "*"  # in a pattern: any characters
MAX_NAME = 256  # characters of a name that matches a pattern, because responses repeat it


@dataclass(frozen=True)
class ServedNames:
    names: tuple[str, ...]  # the first is the name of the model in metrics, logs and views
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, option: str | None, own_name: str) -> Self:
        """Return the names of an option: names and patterns, separated by commas.

        `own_name` is that of the model, if the option has no name. Raises ConfigError.
        """
        given = [] if option is None else [name.strip() for name in option.split(",")]
        if not all(given):
            raise ConfigError(
                f"served_model_name: {option!r} has an empty name; separate names with single commas"
            )
        names = [name for name in given if ANY not in name]
        patterns = [name for name in given if ANY in name]
        return cls(tuple(dict.fromkeys(names or [own_name])), tuple(dict.fromkeys(patterns)))

    @property
    def first(self) -> str:
        return self.names[0]

    def with_tag(self, tag: str) -> "ServedNames":
        """Return the names, each of which may be followed by a tag: `name:tag`."""
        return ServedNames(
            (*self.names, *(f"{name}:{tag}" for name in self.names)),
            (*self.patterns, *(f"{pattern}:{tag}" for pattern in self.patterns)),
        )

    def has(self, name: str) -> bool:
        if name in self.names:
            return True
        return len(name) <= MAX_NAME and self._pattern is not None and bool(self._pattern.fullmatch(name))

    @property
    def described(self) -> str:
        return ", ".join((*self.names, *self.patterns))

    @property
    def allowed(self) -> dict[str, Any]:
        """The names as an OpenAPI schema."""
        if self._pattern is None:
            return {"enum": list(self.names)}
        exact = [re.escape(name) for name in self.names]
        return {"pattern": f"^({'|'.join([*exact, self._pattern.pattern])})$", "maxLength": MAX_NAME}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.patterns:
            return None
        return re.compile("|".join(".*".join(map(re.escape, one.split(ANY))) for one in self.patterns))
