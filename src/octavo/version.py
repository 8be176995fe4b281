"""The one place where the version is written. A module of its own, so that any other may import it."""

__version__ = "0.1.0.dev0"
