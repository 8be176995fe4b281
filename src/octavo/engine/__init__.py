"""The engine: its core, how it is put together (`build`, with torch), and its life as a process."""

from octavo.engine.core import EngineCore

__all__ = ["EngineCore"]
