"""The engine core and how it is put together."""

from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore

__all__ = ["EngineCore", "build_engine"]
