"""Select the device that runs the model, and measure its free memory."""

import textwrap

import torch

from octavo.capacity import free_memory
from octavo.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """Return the torch device of an option value. `auto` is cuda if available, else cpu."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # Writing and reading a value also detects devices without memory, such as `meta`.
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = textwrap.shorten(str(error) or type(error).__name__, 120, placeholder="...")
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device


def free_device_memory(device: torch.device, mapped: int = 0) -> int:
    """Return the free bytes of a device. Devices other than CUDA are assumed to share main memory; for
    `mapped` see `free_memory`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory(mapped)
