"""Which device runs the model, and how much of its memory is free."""

import textwrap

import torch

from octavo.capacity import free_memory
from octavo.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """`auto` is the accelerator, if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # Writing and reading back also finds devices that torch knows by name only, such as `meta`.
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = textwrap.shorten(str(error) or type(error).__name__, 120, placeholder="...")
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device


def free_device_memory(device: torch.device, mapped: int = 0) -> int:
    """Free bytes on the device. Devices other than CUDA's are taken to share main memory; for `mapped` see
    `free_memory`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory(mapped)
