"""The arguments of kernels: structures of octavo_kernels.h in which every field has a role.

The roles are for the tape, which runs recorded calls again with the values of another step: they say which
fields that changes. Nothing here needs torch.
"""

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

Pointer = ctypes.c_void_p
Size = ctypes.c_int64

F32 = 1  # of `ov_dtype`; the rows of every other one are bf16


class Kernel(enum.IntEnum):
    """`ov_kernel` of octavo_kernels.h: the kernels of a forward pass. The function of GEMM is `ov_gemm`."""

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
    """What a step brings: numbers, addresses of int64 vectors, and where the result goes."""

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
    """What a field is for the tape, where that is neither a value of the step nor a `Result`."""

    NUMBER = enum.auto()  # the same in every step: a size, a stride, a dtype
    CONSTANT = enum.auto()  # memory that stays where it is: weights, tables, KV pages; or null
    INPUT = enum.auto()  # rows that an earlier kernel of the pass has written


NUMBER, CONSTANT, INPUT = Role


@dataclass(frozen=True)
class Result:
    """The role of a pointer to the rows that the kernel writes: new ones, or some that there are already."""

    stride: str  # the field with the elements from row to row
    dtype: str  # the field with their dtype, which may be in an inner structure: "pages.dtype"

    def row_bytes(self, arguments: "KernelArguments") -> int:
        size = 4 if attrgetter(self.dtype)(arguments) == F32 else 2
        return int(attrgetter(self.stride)(arguments)) * size


@dataclass(frozen=True)
class Field:
    """A field of a structure, and what it is for the tape."""

    name: str
    kind: Any  # the ctypes type
    role: Role | Result | StepValue  # a value of the step: that number, or a pointer to that vector

    def __post_init__(self) -> None:
        if self.kind is Pointer:
            fits = self.role in (CONSTANT, INPUT, *STEP_VECTORS) or isinstance(self.role, Result)
        elif self.kind is Size:
            fits = self.role in (NUMBER, *STEP_NUMBERS)
        else:
            fits = self.role is (CONSTANT if issubclass(self.kind, ctypes.Structure) else NUMBER)
        if not fits:
            raise TypeError(f"{self.name}: a {self.kind.__name__} cannot be {self.role}")


class KernelArguments(ctypes.Structure):
    """The arguments of one kernel: its structure in octavo_kernels.h, field by field.

    A class has its fields in `declared`, and `_fields_` by `c_fields`: none is without a role.
    """

    kernel: ClassVar[Kernel]
    declared: ClassVar[tuple[Field, ...]]

    def __init_subclass__(cls) -> None:
        if list(cls.__dict__["_fields_"]) != c_fields(cls.declared):
            raise TypeError(f"{cls.__name__}: every field must be declared, with its role")
        names = {field.name for field in cls.declared}
        for role in (field.role for field in cls.declared):
            if isinstance(role, Result) and not names >= {role.stride, role.dtype.split(".")[0]}:
                raise TypeError(f"{cls.__name__} has no {role.stride} or no {role.dtype}")

    @classmethod
    def offset(cls, name: str) -> int:
        return int(getattr(cls, name).offset)


def c_fields(declared: Sequence[Field]) -> list[tuple[str, Any]]:
    """As ctypes has them."""
    return [(field.name, field.kind) for field in declared]
