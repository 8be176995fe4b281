"""Kernels write to buffers and never to `bytes`, which are immutable in Python: ctypes rejects them."""

import ctypes
from types import ModuleType

import pytest
import torch

from octavo.kernels import attention, gemm, rows, sampling, tape
from octavo.kernels import library as library_module
from octavo.kernels.gemm import DTYPES
from octavo.kernels.library import KernelLibrary


def test_flags_of_finite_rows_cannot_be_written_to_bytes(library: KernelLibrary) -> None:
    x, flags = torch.zeros(2, 8), bytes(2)
    with pytest.raises(ctypes.ArgumentError):
        library.functions.ov_finite(DTYPES[x.dtype], x.data_ptr(), 8, *x.shape, flags)
    assert flags == b"\0\0"


@pytest.mark.parametrize("kernel", [attention, gemm, library_module, rows, sampling, tape])
def test_no_kernel_accepts_bytes_as_a_pointer(kernel: ModuleType) -> None:
    for name, (_, arguments) in kernel.PROTOTYPES.items():
        assert ctypes.c_char_p not in arguments, name
