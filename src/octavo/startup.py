"""Helpers for a fast start of the server's processes."""

import ctypes
import gc
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, and exempt all objects that exist at the end from later collections.

    Modules, vocabularies and the model live as long as the process. Scanning them again and again would slow
    down the start, and later the steps.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def preload_torch() -> None:
    """Load torch's largest library on a thread, while the caller imports modules that do not need torch.

    `import torch` would load it with the interpreter lock held; now it finds it loaded. Errors are ignored
    here, because that import reports them.
    """
    threading.Thread(target=_load_torch_library, name="octavo-torch", daemon=True).start()


def _load_torch_library() -> None:
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        with suppress(OSError):  # the file has another name on other systems
            ctypes.CDLL(str(Path(torch.origin).parent / "lib" / "libtorch_cpu.so"))
