"""Fixtures that run commands in this process."""

import io
import os
import re
import sys

import pytest

from octavo.cli.main import main
from octavo.config import EngineOptions
from unit.cli.scripted import KeyboardlessStdin, Ran, RunCommand, Scripted, ScriptedLLM


@pytest.fixture
def scripted() -> Scripted:
    return ScriptedLLM


@pytest.fixture
def run_octavo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run a command in this process; `stdin=None` is a terminal without input."""
    for name in [name for name in os.environ if re.match("OCTAVO_(?!TEST_)", name)]:
        monkeypatch.delenv(name)

    def run(*argv: str, stdin: str | None = "", llm: ScriptedLLM | None = None) -> Ran:
        def open_scripted(options: EngineOptions, *, progress: bool) -> ScriptedLLM:
            assert llm is not None, "the command was not expected to load a model"
            llm.options = options
            return llm

        monkeypatch.setattr(sys, "stdin", KeyboardlessStdin() if stdin is None else io.StringIO(stdin))
        try:
            code = main(argv, open_model=open_scripted)
        except SystemExit as left:  # argparse
            code = int(left.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
