"""How the processes of a server start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python's garbage collector does not run inside, and never looks at what was made inside.

    Modules, vocabularies and the model stay as long as the process: searching them for garbage again and
    again takes part of the start, and later the time of a step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
