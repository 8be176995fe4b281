"""The tape: what it plays is what was recorded, and it refuses what it cannot follow."""

import ctypes
import random
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import gemm, rows
from octavo.kernels.arguments import STEP_VECTORS, Kernel, Pointer, StepValue
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Engine, KernelLibrary
from octavo.kernels.rows import AddArguments, ScaleArguments
from octavo.kernels.spread import new_rows
from octavo.kernels.tape import PatchStruct, Register, Resolver, Tape, TapeCallStruct, share_places

OpenEngine = Callable[..., Engine]
WIDTH = 48


def weight(library: KernelLibrary, n: int, k: int) -> PackedMatrix:
    matrix = PackedMatrix(library, n, k, "BF16")
    matrix.write_rows(0, torch.randn(n, k, generator=torch.Generator().manual_seed(n)))
    return matrix


class Network:
    """Registers that live long and short, one that is read as a view, and one written in place."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.table = weight(engine.library, 90, WIDTH)
        self.matrices = [weight(engine.library, WIDTH, 2 * WIDTH) for _ in range(3)]
        self.wide = [weight(engine.library, 4 * WIDTH, WIDTH) for _ in range(3)]
        self.gain = torch.rand(WIDTH)
        self.angles = torch.rand(64, 8)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        engine = self.engine
        stream = gemm.read_rows(engine, self.table, token_ids)
        for narrow, wide in zip(self.matrices, self.wide, strict=True):
            x = rows.rms_norm(engine, stream, self.gain, 1e-5)
            both = gemm.multiply(engine, x, wide, None, torch.bfloat16)
            _first, second = both.split(2 * WIDTH, dim=1)
            heads = second.view(len(x), -1, 16)
            rows.rope(engine, heads, positions, self.angles, self.angles, out=heads)
            update = gemm.multiply(engine, second, narrow, None, torch.bfloat16)
            stream, x = rows.add_rms_norm(engine, stream, update, self.gain, 1e-5)
            stream = rows.add(engine, stream, x)
        return rows.rms_norm(engine, stream, self.gain, 1e-5)


def record(engine: Engine, forward: Callable[..., torch.Tensor]) -> Tape:
    token_ids, positions = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    vectors = {StepValue.TOKEN_IDS: token_ids.data_ptr(), StepValue.POSITIONS: positions.data_ptr()}
    with engine.recording() as calls:
        output = forward(token_ids, positions)
    return Tape(engine, calls, vectors, output)


def addresses(token_ids: torch.Tensor, positions: torch.Tensor) -> list[int]:
    """The network knows no other vectors."""
    given = {StepValue.TOKEN_IDS: token_ids.data_ptr(), StepValue.POSITIONS: positions.data_ptr()}
    return [given.get(vector, 0) for vector in STEP_VECTORS]


def test_it_plays_what_was_recorded_for_any_number_of_rows(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    network = Network(open_engine(library.best_isa))
    tape = record(network.engine, network.forward)
    for num_rows in (1, 5, 130, 2):
        token_ids = torch.randint(90, (num_rows,), generator=torch.Generator().manual_seed(num_rows))
        positions = token_ids % 64
        played = tape.run(num_rows, 1, addresses(token_ids, positions))
        assert torch.equal(played, network.forward(token_ids, positions))


def test_several_kernels_may_write_columns_of_one_result(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    engine = open_engine(library.best_isa)
    table = weight(library, 90, WIDTH)

    def forward(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        x = gemm.read_rows(engine, table, token_ids)
        y = new_rows((len(x), 3 * WIDTH), x.dtype)
        for number, part in enumerate(y.split(WIDTH, dim=1)):
            places = x.data_ptr(), x.stride(0), part.data_ptr(), part.stride(0)
            engine.run(ScaleArguments(0, number + 1.0, *places, len(x), WIDTH), x, y)
        return rows.add(engine, y, y)

    tape = record(engine, forward)
    token_ids = torch.arange(7)
    expected = torch.cat([gemm.read_rows(engine, table, token_ids) * factor for factor in (2, 4, 6)], dim=1)
    assert torch.equal(tape.run(7, 1, addresses(token_ids, token_ids)), expected)


def test_nothing_runs_while_recording(library: KernelLibrary, open_engine: OpenEngine) -> None:
    engine = open_engine(library.best_isa)
    x = torch.full((2, 8), 3.0)
    with engine.recording() as calls:
        rows.rope(
            engine,
            x[:, None],
            torch.zeros(2, dtype=torch.int64),
            x[:, :4].clone(),
            x[:, :4].clone(),
            out=x[:, None],
        )
    assert [call.arguments.kernel for call in calls] == [Kernel.ROPE]
    assert torch.all(x == 3.0)
    assert torch.equal(rows.add(engine, x, x), x + x)


def test_what_torch_computes_in_between_is_refused(library: KernelLibrary, open_engine: OpenEngine) -> None:
    """It would be a constant of the recording: the same numbers in every step."""
    network = Network(open_engine(library.best_isa))

    def doubled(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        x = gemm.read_rows(network.engine, network.table, token_ids)
        return rows.rms_norm(network.engine, x * 2, network.gain, 1e-5)

    def not_a_result(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, positions) * 2

    def other_positions(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, positions + 1)

    def the_wrong_vector(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, token_ids)

    for forward in (doubled, not_a_result, other_positions, the_wrong_vector):
        with pytest.raises(ValueError, match=r"torch does|what a kernel wrote"):
            record(network.engine, forward)


def test_registers_that_share_a_place_never_live_together() -> None:
    chance = random.Random(4)
    for _ in range(200):
        registers = []
        for address in range(chance.randrange(1, 30)):
            first = chance.randrange(20)
            registers.append(Register(address, chance.choice([64, 96]), first, first + chance.randrange(6)))
        places = share_places(registers)
        assert set(places) == set(range(max(places) + 1))
        for one, place in zip(registers, places, strict=True):
            for other, other_place in zip(registers, places, strict=True):
                if one is not other and place == other_place:
                    assert one.row_bytes == other.row_bytes
                    assert one.last_call < other.first_call or other.last_call < one.first_call


def test_few_places_are_enough_for_many_layers(library: KernelLibrary, open_engine: OpenEngine) -> None:
    network = Network(open_engine(library.best_isa))
    ids = torch.zeros(2, dtype=torch.int64)
    with network.engine.recording() as calls:
        network.forward(ids, ids)
    resolver = Resolver(2, dict.fromkeys((StepValue.TOKEN_IDS, StepValue.POSITIONS), ids.data_ptr()))
    for number, call in enumerate(calls):
        resolver.resolve(number, call.arguments)
    assert len(resolver.registers) > 15
    assert len(set(share_places(resolver.registers))) <= 6


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": 99},
        {"kernel": -1},
        {"args": None},
        {"args_bytes": 8},
        {"num_patches": -1},
        {"patches": None},
        {"offset": -8},
        {"offset": 4},
        {"offset": ctypes.sizeof(AddArguments)},
        {"source": 1},
        {"source": -1},
    ],
    ids=str,
)
def test_the_border_refuses_a_wrong_tape(library: KernelLibrary, change: dict[str, int | None]) -> None:
    arguments = AddArguments()
    patch = PatchStruct(8, 0, 0)
    call = TapeCallStruct(
        Kernel.ADD, 1, ctypes.pointer(patch), ctypes.addressof(arguments), ctypes.sizeof(arguments)
    )
    handle = Pointer()
    opened = library.functions.ov_tape_open(ctypes.pointer(call), 1, 1, None, 0, ctypes.byref(handle))
    assert opened == 0
    library.functions.ov_tape_close(handle)
    for name, value in change.items():
        setattr(patch if name in ("offset", "source") else call, name, value)
    assert library.functions.ov_tape_open(ctypes.pointer(call), 1, 1, None, 0, ctypes.byref(handle)) != 0


def test_a_refused_call_stops_the_tape_and_says_so(library: KernelLibrary, open_engine: OpenEngine) -> None:
    network = Network(open_engine(library.best_isa))
    tape = record(network.engine, network.forward)
    good = torch.zeros(3, dtype=torch.int64)
    for token_ids, positions in [(good + 90, good), (good, good - 1)]:
        with pytest.raises(ValueError, match="native kernel"):
            tape.run(3, 1, addresses(token_ids, positions))
    with pytest.raises(ValueError, match="native kernel"):
        tape.run(0, 1, addresses(good, good))
