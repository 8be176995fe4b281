"""Parse Python without executing it."""

import ast
import gc


def syntax_tree(code: str) -> ast.Module:
    """Return what `ast.parse` returns, whatever other threads do.

    CPython 3.11 before 3.11.8 counts the depth of trees for all threads together. If another thread parses
    while this one is halfway, as the formatting of a traceback does, `ast.parse` raises SystemError. A thread
    can only be interrupted there by finalisers, which the garbage collector runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(code)
    finally:
        if was_enabled:
            gc.enable()
