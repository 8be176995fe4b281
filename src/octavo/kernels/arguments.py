"""The arguments of kernels: the structures of octavo_kernels.h, with a role for every field.

The tape uses the roles: it replays recorded calls with the values of another step, and the roles determine
which fields change. This module does not import torch.
"""

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

Pointer = ctypes.c_void_p
Size = ctypes.c_int64

F32 = 1  # in `ov_dtype`; rows of every other dtype are bf16


class Kernel(enum.IntEnum):
    """`ov_kernel` of octavo_kernels.h: the kernels of a forward pass. GEMM's function is `ov_gemm`, etc."""

    EMBEDDING = 0
    GEMM = 1
    RMS_NORM = 2
    ADD_RMS_NORM = 3
    ROPE = 4
    GATED = 5
    ADD = 6
    SCALE = 7
    KV_WRITE = 8
    ATTENTION = 9


class StepValue(enum.IntEnum):
    """Values that change with every step: numbers, addresses of int64 vectors, the address of the result."""

    NUM_ROWS = 0
    NUM_SEQUENCES = 1
    TOKEN_IDS = 2
    POSITIONS = 3
    KV_SLOTS = 4
    FIRST_ROWS = 5
    ROW_COUNTS = 6
    CONTEXTS = 7
    BLOCK_OFFSETS = 8
    BLOCKS = 9
    OUTPUT = 10


STEP_NUMBERS = (StepValue.NUM_ROWS, StepValue.NUM_SEQUENCES)
STEP_VECTORS = tuple(StepValue)[StepValue.TOKEN_IDS : StepValue.OUTPUT]


class Role(enum.Enum):
    """The role of a field that is neither a value of the step nor a `ResultField`."""

    NUMBER = enum.auto()  # the same in every step: a size, a stride, a dtype
    CONSTANT = enum.auto()  # memory with a fixed address: weights, tables, KV blocks; or null
    INPUT = enum.auto()  # rows that an earlier kernel of the forward pass has written


NUMBER, CONSTANT, INPUT = Role


@dataclass(frozen=True)
class ResultField:
    """The role of a pointer to the rows that the kernel writes: new rows or existing ones."""

    stride: str  # name of the field with the row stride, in elements
    dtype: str  # name of the field with the dtype, which may be in an inner structure: "kv.dtype"

    def row_bytes(self, arguments: "KernelArguments") -> int:
        size = 4 if attrgetter(self.dtype)(arguments) == F32 else 2
        return int(attrgetter(self.stride)(arguments)) * size


@dataclass(frozen=True)
class Field:
    """A field of a structure, and its role for the tape."""

    name: str
    kind: Any  # the ctypes type
    role: Role | ResultField | StepValue  # StepValue: this number, or a pointer to this vector

    def __post_init__(self) -> None:
        if self.kind is Pointer:
            fits = self.role in (CONSTANT, INPUT, *STEP_VECTORS) or isinstance(self.role, ResultField)
        elif self.kind is Size:
            fits = self.role in (NUMBER, *STEP_NUMBERS)
        else:
            fits = self.role is (CONSTANT if issubclass(self.kind, ctypes.Structure) else NUMBER)
        if not fits:
            raise TypeError(f"{self.name}: a {self.kind.__name__} cannot be {self.role}")


class KernelArguments(ctypes.Structure):
    """The arguments of one kernel: its structure in octavo_kernels.h, field by field.

    Subclasses list their fields in `declared` and make `_fields_` with `c_fields`: every field has a role.
    """

    kernel: ClassVar[Kernel]
    declared: ClassVar[tuple[Field, ...]]

    def __init_subclass__(cls) -> None:
        if list(cls.__dict__["_fields_"]) != c_fields(cls.declared):
            raise TypeError(f"{cls.__name__}: every field must be declared with its role")
        names = {field.name for field in cls.declared}
        for role in (field.role for field in cls.declared):
            if isinstance(role, ResultField) and not names >= {role.stride, role.dtype.split(".")[0]}:
                raise TypeError(f"{cls.__name__} lacks the field {role.stride} or {role.dtype}")

    @classmethod
    def offset(cls, name: str) -> int:
        return int(getattr(cls, name).offset)


def c_fields(declared: Sequence[Field]) -> list[tuple[str, Any]]:
    """Return the fields in the form that ctypes expects."""
    return [(field.name, field.kind) for field in declared]
