"""The torch operations compared with the published formulas, in float64."""

import math

import pytest
import torch

from octavo.ops import Batch, BatchSequence, LinearPart, select_ops
from octavo.ops.torch_ops import TorchOps

_OPS = TorchOps(torch.device("cpu"), torch.float32)
_HALF = TorchOps(torch.device("cpu"), torch.bfloat16)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _positions(*positions: int) -> Batch:
    """Return a batch in which only the positions matter."""
    zeros = torch.zeros(len(positions), dtype=torch.int64)
    sequence = BatchSequence(0, len(positions), max(positions) + 1, zeros)
    return Batch.of(zeros, torch.tensor(positions), zeros, (sequence,), block_size=16)


def test_select_ops_keeps_device_and_dtype() -> None:
    ops = select_ops("meta", torch.bfloat16)
    assert (ops.device, ops.dtype) == (torch.device("meta"), torch.bfloat16)
    linear = ops.new_linear([LinearPart(3)], 4, bias=True)
    assert ops.linear(torch.empty(2, 4, device="meta", dtype=torch.bfloat16), linear).device.type == "meta"


def test_linear_and_logits() -> None:
    weight, bias, x = _random(5, 3), _random(5), _random(2, 3)
    linear = _OPS.new_linear([LinearPart(5)], 3, bias=True)
    assert linear.bias is not None
    linear.weights[0].write_rows(0, weight)
    linear.bias.write_rows(0, bias)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(_OPS.linear(x, linear).double(), expected, atol=1e-5, rtol=1e-5)
    capped = 3 * torch.tanh(expected / 3)
    torch.testing.assert_close(_OPS.logits(x, linear, softcap=3.0).double(), capped, atol=1e-5, rtol=1e-5)
    assert _OPS.new_linear([LinearPart(5)], 3).bias is None


def test_logits_are_float32_in_a_bfloat16_model() -> None:
    head = _HALF.new_embedding(4, 2)
    head.weights[0].write_rows(0, _random(4, 2))
    assert _HALF.logits(_random(3, 2).bfloat16(), head).dtype == torch.float32


def test_the_embedding_scale_is_rounded_to_the_dtype_first() -> None:
    scale = math.sqrt(640)  # 25.298; in bfloat16 25.25
    table = _HALF.new_embedding(7, 640)
    table.weights[0].write_rows(0, _random(7, 640))
    token_ids = torch.tensor([3, 0, 3])
    rows = _HALF.embedding(table, token_ids)
    assert torch.equal(rows, _random(7, 640).bfloat16()[token_ids])
    assert torch.equal(_HALF.embedding(table, token_ids, scale=scale), rows * torch.tensor(25.25).bfloat16())
    assert not torch.equal(rows * 25.25, rows * scale), "the inputs must distinguish the two scales"


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    weight, x, update = _random(6), _random(4, 2, 6) * 3, _random(4, 2, 6)
    norm = _OPS.new_norm(6, eps=0.1, offset=offset)
    norm.weight.write_rows(0, weight)

    def formula(x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 0.1) * (offset + weight.double())

    torch.testing.assert_close(_OPS.rms_norm(x, norm).double(), formula(x), atol=1e-5, rtol=1e-5)
    stream, normed = _OPS.add_rms_norm(x, update, norm)
    assert torch.equal(stream, _OPS.add(x, update))
    torch.testing.assert_close(normed.double(), formula(x.double() + update), atol=1e-5, rtol=1e-5)


def test_bfloat16_rounds_once() -> None:
    """The float32 result is rounded once; rounding between the steps would give another result."""
    x, weight = _random(64, 128).bfloat16(), _random(128)
    norms = [ops.new_norm(128, eps=1e-6) for ops in (_HALF, _OPS)]
    for norm in norms:
        norm.weight.write_rows(0, weight)
    assert torch.equal(_HALF.rms_norm(x, norms[0]), _OPS.rms_norm(x.float(), norms[1]).bfloat16())
    for name in ("swiglu", "geglu"):
        assert torch.equal(getattr(_HALF, name)(x), getattr(_OPS, name)(x.float()).bfloat16())


def test_gated_activations() -> None:
    gate_up = _random(3, 8) * 2
    gate, up = gate_up.double().chunk(2, dim=-1)
    silu = gate / (1 + torch.exp(-gate))
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    torch.testing.assert_close(_OPS.swiglu(gate_up).double(), silu * up, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(_OPS.geglu(gate_up).double(), gelu * up, atol=1e-5, rtol=1e-5)


def test_split_heads() -> None:
    qkv = _random(2, 5 * 4)
    query, key, value = _OPS.split_heads(qkv, (3, 1, 1), 4)
    assert torch.equal(torch.cat([part.flatten(1) for part in (query, key, value)], dim=1), qkv)
    assert [part.shape[1] for part in (query, key, value)] == [3, 1, 1]


def test_rope_rotates_pairs_by_position_times_frequency() -> None:
    frequencies = torch.tensor([1.0, 0.25])
    batch = _positions(0, 3, 2000)
    query, key = _random(3, 2, 4), _random(3, 1, 4)
    turned = _OPS.rope(query, key, batch, _OPS.new_rope(frequencies))
    for before, after in zip((query, key), turned, strict=True):
        pairs = torch.complex(before[..., :2].double(), before[..., 2:].double())
        angles = batch.positions[:, None, None] * frequencies.double()
        expected = pairs * torch.exp(1j * angles)
        torch.testing.assert_close(
            torch.cat([expected.real, expected.imag], -1), after.double(), atol=1e-5, rtol=1e-5
        )
