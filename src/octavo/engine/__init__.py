"""The engine: its core, its construction (`build`, which imports torch), and the engine process."""

from octavo.engine.core import EngineCore

__all__ = ["EngineCore"]
