"""The input of every command."""

import argparse
from dataclasses import dataclass

from octavo.cli.model import OpenModel
from octavo.cli.terminal import Terminal
from octavo.config import EngineOptions, ResolvedOptions


@dataclass(frozen=True)
class Invocation:
    args: argparse.Namespace
    resolved: ResolvedOptions
    terminal: Terminal
    open_model: OpenModel

    @property
    def options(self) -> EngineOptions:
        return self.resolved.options
