import pytest
import torch

from octavo.capacity import free_memory
from octavo.devices import free_device_memory, resolve_device
from octavo.errors import ConfigError


def test_auto_selects_an_available_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=is_there: answer)
        assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda:99", "bogus", "meta", "hpu", "xla"])
def test_unusable_devices_are_rejected_with_a_one_line_error(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^device '{name}' cannot be used here \(.*\); try --device cpu$"):
        resolve_device(name)


def test_free_memory_of_a_cpu_is_main_memory() -> None:
    assert 0.5 < free_device_memory(resolve_device("cpu")) / free_memory() < 2
