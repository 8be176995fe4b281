"""How the processes of a server start."""

import ctypes
import gc
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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


def begin_with_torch() -> None:
    """Load torch's largest library on a thread, while this one imports what needs no torch.

    `import torch` would do the same with the interpreter's lock held, and then finds it loaded. What goes
    wrong here is left to that import to tell.
    """
    threading.Thread(target=_load_torch_library, name="octavo-torch", daemon=True).start()


def _load_torch_library() -> None:
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        with suppress(OSError):  # other systems have other names for it
            ctypes.CDLL(str(Path(torch.origin).parent / "lib" / "libtorch_cpu.so"))
