"""Code is parsed while other threads parse, too."""

import ast
import contextlib
import gc
import sys
import threading
import traceback
from pathlib import Path

import pytest

from octavo.dialect.syntax_tree import syntax_tree

CODE = Path(ast.__file__).read_text(encoding="utf-8")
NUM_TREES = 150


class Garbage:
    """Only the garbage collector can free it. Then it runs Python code, during which threads may switch."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(50))


def test_a_thread_that_formats_tracebacks_disturbs_no_parser() -> None:
    """In Python 3.11, the formatting of a traceback parses the lines that it shows."""
    is_over = threading.Event()

    def format_tracebacks() -> None:
        while not is_over.is_set():
            _ = [Garbage() for _ in range(50)]
            try:
                raise ValueError
            except ValueError:
                with contextlib.suppress(SystemError):  # this thread is not protected
                    traceback.format_exc()

    thread = threading.Thread(target=format_tracebacks)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(NUM_TREES):
            assert syntax_tree(CODE).body
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("code", ["a = 1", "a ="])
@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(code: str, is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        if code.endswith("="):
            with pytest.raises(SyntaxError):
                syntax_tree(code)
        else:
            assert ast.unparse(syntax_tree(code)) == code
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
