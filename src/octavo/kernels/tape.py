"""A forward pass as one native call.

    record   the model's Python runs once, on a small made-up batch; its kernels are written down and not run
    resolve  every argument is found to be a constant (weights, KV pages), a value of the step (the number of
             rows, positions, ...) or a place in a register: what an earlier kernel of the pass has written
    run      a step brings its values; the registers get places in one piece of memory, and the tape plays

A register is a matrix with a row for each token of the step. Registers that do not live at the same time
share their place:

    kernel     norm  qkv  rope  rope  write  attend  out  ...
    x           w     r
    qkv               w    r     r      r
    query                  w                   r
    key                          w      r
    attended                                   w      r          may have x's place
"""

import bisect
import ctypes
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from octavo.kernels.library import Engine, KernelArguments, Pointer, RecordedCall, Size
from octavo.kernels.spread import new_rows


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


STEP_VECTORS = tuple(StepValue)[StepValue.TOKEN_IDS : StepValue.OUTPUT]

# Arguments by their names, which mean the same in every kernel.
COUNTS = {
    "m": StepValue.NUM_ROWS,
    "num_rows": StepValue.NUM_ROWS,
    "num_sequences": StepValue.NUM_SEQUENCES,
}
CONSTANTS = {"packed", "bias", "gain", "keys", "values", "cosines", "sines"}
RESULTS = {"y", "sum", "out"}


class PatchStruct(ctypes.Structure):
    """`ov_patch` of octavo_kernels.h"""

    _fields_ = (("offset", ctypes.c_int32), ("source", ctypes.c_int32), ("addend", Size))


class TapeCallStruct(ctypes.Structure):
    """`ov_tape_call`"""

    _fields_ = (
        ("kernel", ctypes.c_int32),
        ("num_patches", ctypes.c_int32),
        ("patches", ctypes.POINTER(PatchStruct)),
        ("args", Pointer),
        ("args_bytes", Size),
    )


StepValues = Size * len(StepValue)

PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_tape_open": (
        ctypes.c_int,
        (
            ctypes.POINTER(TapeCallStruct),
            Size,
            Size,
            ctypes.POINTER(Size),
            Size,
            ctypes.POINTER(Pointer),
        ),
    ),
    "ov_tape_close": (None, (Pointer,)),
    "ov_tape_run": (ctypes.c_int, (Pointer, Pointer, ctypes.POINTER(Size), Size)),
}


@dataclass
class Register:
    """Memory that a kernel of the recording wrote, and when it is in use."""

    address: int  # in the recording
    row_bytes: int
    first_call: int
    last_call: int


@dataclass(frozen=True)
class Patch:
    """The argument at `offset` is the step's value, or the address of the register, plus `addend`."""

    offset: int
    source: StepValue | Register
    addend: int = 0


@dataclass
class Resolver:
    """Finds out where the arguments of a recording come from, call by call in order."""

    num_rows: int
    inputs: Mapping[int, StepValue]  # by address
    registers: list[Register] = field(default_factory=list)  # by address

    def resolve(self, number: int, arguments: KernelArguments) -> list[Patch]:
        patches = []
        for name, offset, kind in _fields(type(arguments)):
            value = _value_at(arguments, offset)
            if name in COUNTS:
                patches.append(Patch(offset, COUNTS[name]))
            elif kind is Pointer and name not in CONSTANTS:
                if name in RESULTS and self._register_at(value) is None:
                    self._add(value, _row_bytes(arguments, name), number)
                patches.append(self._patch_of(offset, value, number, f"{arguments.kernel.name}'s {name}"))
        return patches

    def _patch_of(self, offset: int, address: int, number: int, what: str) -> Patch:
        if address in self.inputs:
            return Patch(offset, self.inputs[address])
        register = self._register_at(address)
        if register is None:
            raise ValueError(f"{what} was not computed by a kernel: a tape cannot follow what torch does")
        register.last_call = number
        return Patch(offset, register, address - register.address)

    def _register_at(self, address: int) -> Register | None:
        index = bisect.bisect_right(self.registers, address, key=lambda register: register.address) - 1
        if index < 0:
            return None
        register = self.registers[index]
        return register if address < register.address + self.num_rows * register.row_bytes else None

    def _add(self, address: int, row_bytes: int, number: int) -> None:
        bisect.insort(
            self.registers,
            Register(address, row_bytes, number, number),
            key=lambda register: register.address,
        )


class Tape:
    """A recorded pass, with the memory of its registers. One caller at a time."""

    def __init__(
        self,
        engine: Engine,
        calls: Sequence[RecordedCall],
        inputs: Mapping[int, StepValue],
        output: torch.Tensor,
    ) -> None:
        """`output`: what the recorded pass gave, [rows, width]; `inputs`: the addresses that it was given."""
        self._engine = engine
        self._calls = calls  # they own the constants
        resolver = Resolver(len(output), inputs)
        patches = [resolver.resolve(number, call.arguments) for number, call in enumerate(calls)]
        registers = [r for r in resolver.registers if r.address != output.data_ptr()]
        is_new = output.stride() == new_rows(output.shape, output.dtype).stride()
        if len(registers) == len(resolver.registers) or not is_new:
            raise ValueError("the result of a recorded pass must be what a kernel wrote")
        places = share_places(registers)
        sources = {
            id(register): len(StepValue) + place for register, place in zip(registers, places, strict=True)
        }
        row_bytes = (Size * len(set(places)))()
        for register, place in zip(registers, places, strict=True):
            row_bytes[place] = register.row_bytes
        self._output_width, self._output_dtype = output.shape[1], output.dtype
        self._handle = Pointer()
        structs, _alive = _call_structs(calls, patches, sources)
        engine.library.check(
            engine.library.functions.ov_tape_open(
                structs, len(calls), len(StepValue), row_bytes, len(row_bytes), ctypes.byref(self._handle)
            )
        )

    def run(self, num_rows: int, num_sequences: int, addresses: Sequence[int]) -> torch.Tensor:
        """The result of the pass, [num_rows, width]. `addresses` are those of the `STEP_VECTORS`."""
        output = new_rows((num_rows, self._output_width), self._output_dtype)
        values = StepValues(num_rows, num_sequences, *addresses, output.data_ptr())
        library = self._engine.library
        library.check(library.functions.ov_tape_run(self._engine.handle, self._handle, values, len(values)))
        return output

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._engine.library.functions.ov_tape_close(self._handle)


def share_places(registers: Sequence[Register]) -> list[int]:
    """For each register the number of its place. Those that share one have the same size, and one is written
    only by a call after the last that reads the other."""
    in_use: list[Register] = []  # for each place, the last register that has it
    places = {}
    for register in sorted(registers, key=lambda register: register.first_call):
        free = (
            place
            for place, before in enumerate(in_use)
            if before.row_bytes == register.row_bytes and before.last_call < register.first_call
        )
        place = next(free, len(in_use))
        in_use[place : place + 1] = [register]
        places[register.address] = place
    return [places[register.address] for register in registers]


def _call_structs(
    calls: Sequence[RecordedCall], patches: Sequence[Sequence[Patch]], sources: Mapping[int, int]
) -> tuple[Any, list[Any]]:
    """The calls as the library takes them, and what they point to. `sources`: by the register's identity."""
    structs, alive = (TapeCallStruct * len(calls))(), []
    for struct, call, patched in zip(structs, calls, patches, strict=True):
        array = (PatchStruct * len(patched))()
        for index, patch in enumerate(patched):
            is_step = isinstance(patch.source, StepValue)
            source = patch.source if is_step else sources.get(id(patch.source), StepValue.OUTPUT)
            array[index] = PatchStruct(patch.offset, source, patch.addend)
        struct.kernel, struct.num_patches, struct.patches = call.arguments.kernel, len(patched), array
        struct.args, struct.args_bytes = ctypes.addressof(call.arguments), ctypes.sizeof(call.arguments)
        alive.append(array)
    return structs, alive


def _fields(structure: type[ctypes.Structure], start: int = 0) -> Iterator[tuple[str, int, Any]]:
    """Name, offset and type of every field, those of inner structures included."""
    for name, kind, *_ in structure._fields_:
        offset = start + getattr(structure, name).offset
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            yield from _fields(kind, offset)
        else:
            yield name, offset, kind


def _value_at(arguments: KernelArguments, offset: int) -> int:
    return ctypes.c_int64.from_buffer(arguments, offset).value if offset % 8 == 0 else 0


def _row_bytes(arguments: Any, name: str) -> int:
    """Of a result. It was just made: rows are as far apart as they will be in its place."""
    dtype = getattr(arguments, "out_dtype", None)
    if dtype is None:
        dtype = arguments.pages.dtype if hasattr(arguments, "pages") else arguments.dtype
    return int(getattr(arguments, f"{name}_stride")) * (2 if dtype == 0 else 4)
