"""Each rule of docs/decisions/0005, broken on purpose, turns the suite red, and the place is named.

With the tape a kernel's Python is called once, to be recorded: these runs do without.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import pytest
import torch

from octavo.kernels import attention, gemm, rows
from octavo.kernels.attention import KVPages, SequenceTable
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Engine, KernelLibrary, find_library
from purity.ways import PLAIN, Way, joining, loaded, mismatch, together
from purity.workloads import tiny_requests

WAYS = [Way(together, chunk=33, tape=False), Way(joining, chunk=128, tape=False)]


class Rest(TypedDict, total=False):
    """What else attention is told."""

    window: int | None
    softcap: float | None


def another_order_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of its own for decoding, as fast libraries have."""
    multiply = gemm.multiply

    def broken(
        engine: Engine,
        x: torch.Tensor,
        weight: PackedMatrix,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        if len(x) > 1:
            return multiply(engine, x, weight, bias, out_dtype)
        half = weight.k // 2
        w = gemm.read_rows(engine, weight, torch.arange(weight.n)).float()
        y = x[:, :half].float() @ w[:, :half].T + x[:, half:].float() @ w[:, half:].T
        return (y if bias is None else y + bias).to(out_dtype)

    monkeypatch.setattr(gemm, "multiply", broken)


def one_chain_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every k after the other, as a product of floats is summed, and not as AMX sums bf16."""
    multiply = gemm.multiply

    def broken(
        engine: Engine,
        x: torch.Tensor,
        weight: PackedMatrix,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        if len(x) < 4:
            return multiply(engine, x, weight, bias, out_dtype)
        wide = PackedMatrix(engine.library, weight.n, weight.k, "F32")
        wide.write_rows(0, gemm.read_rows(engine, weight, torch.arange(weight.n)).float())
        return multiply(engine, x.float(), wide, bias, torch.float32).to(out_dtype)

    monkeypatch.setattr(gemm, "multiply", broken)


def another_sum_in_the_norm_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rms_norm = rows.rms_norm

    def broken(engine: Engine, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        if len(x) < 16:
            return rms_norm(engine, x, gain, eps)
        wide = x.double()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gain).to(x.dtype)

    monkeypatch.setattr(rows, "rms_norm", broken)


def keys_cut_where_the_chunk_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in two parts, older keys and those of this step, merged by their sums of exponentials."""
    write_kv, attend = attention.write_kv, attention.attend
    written: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # by layer and slot

    def write(
        engine: Engine, pages: KVPages, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        write_kv(engine, pages, key, value, slots)
        for row, slot in enumerate(slots.tolist()):
            written[id(pages), slot] = key[row].float(), value[row].float()

    def broken(
        engine: Engine,
        pages: KVPages,
        query: torch.Tensor,
        table: SequenceTable,
        *,
        scale: float,
        **rest: Unpack[Rest],
    ) -> torch.Tensor:
        out = attend(engine, pages, query, table, scale=scale, **rest)
        for number, (first, count, context) in enumerate(
            zip(table.first_rows.tolist(), table.row_counts.tolist(), table.contexts.tolist(), strict=True)
        ):
            start = context - count
            if start == 0 or count == 1:
                continue
            blocks = table.blocks[int(table.block_offsets[number]) :].tolist()
            slots = [
                blocks[p // pages.page_size] * pages.page_size + p % pages.page_size for p in range(context)
            ]
            keys, values = (
                torch.stack(both) for both in zip(*(written[id(pages), s] for s in slots), strict=True)
            )
            for row in range(count):
                seen = [slice(0, start), slice(start, start + row + 1)]
                parts = [_part(query[first + row].float(), keys[s], values[s], scale) for s in seen]
                largest = torch.maximum(parts[0][0], parts[1][0])
                sums = [(top - largest).exp() * total for top, total, _ in parts]
                merged = sum((top - largest).exp() * mix for top, _, mix in parts) / (sums[0] + sums[1])
                out[first + row] = merged.to(out.dtype)
        return out

    monkeypatch.setattr(attention, "write_kv", write)
    monkeypatch.setattr(attention, "attend", broken)


def _part(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each head: the largest score, the sum of exponentials, and the values in proportion to them."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("hd,khd->hk", query, keys) * scale
    largest = scores.max(dim=1, keepdim=True).values
    weights = (scores - largest).exp()
    return largest, weights.sum(dim=1, keepdim=True), torch.einsum("hk,khd->hd", weights, values)


@pytest.fixture
def best_isa() -> str:
    path = find_library()
    if path is None:
        pytest.skip("needs the native library")
    return KernelLibrary(path).best_isa.name.lower()


BreakRule = Callable[[pytest.MonkeyPatch], None]
RULES: Sequence[tuple[BreakRule, str, str]] = [
    # Rounding to bf16 hides most of it: the first that is left may be any product.
    (another_order_for_one_row, "bfloat16", r"(layer \d linear [\w.]+|logits lm_head)"),
    (one_chain_for_many_rows, "bfloat16", r"(layer \d linear [\w.]+|logits lm_head)"),
    (another_sum_in_the_norm_of_many_rows, "float32", "layer 0 rms_norm input_layernorm"),
    (keys_cut_where_the_chunk_begins, "float32", "layer 0 attention"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0].__name__)
def test_a_broken_rule_turns_the_suite_red(
    family: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    best_isa: str,
    rule: tuple[BreakRule, str, str],
) -> None:
    break_the_rule, dtype, place = rule
    break_the_rule(monkeypatch)
    requests = tiny_requests()[1:24:3]
    with loaded(family("llama"), dtype, best_isa) as model:
        plain = model.run(PLAIN, requests)
        problems = [mismatch(model.run(way, requests), plain, requests) for way in WAYS]
    found = [problem for problem in problems if problem is not None]
    assert found
    assert all(re.search(rf"first difference: {place}, position \d+ ", problem) for problem in found), found


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_first_layer_and_position_are_named(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, best_isa: str, layer: int
) -> None:
    """One number of one layer's attention, wrong at one position of a later chunk, and only there."""
    attend, calls = attention.attend, 0

    def broken(
        engine: Engine,
        pages: KVPages,
        query: torch.Tensor,
        table: SequenceTable,
        *,
        scale: float,
        **rest: Unpack[Rest],
    ) -> torch.Tensor:
        nonlocal calls
        out = attend(engine, pages, query, table, scale=scale, **rest)
        calls += 1
        starts = table.contexts - table.row_counts
        for first, start, context in zip(
            table.first_rows.tolist(), starts.tolist(), table.contexts.tolist(), strict=True
        ):
            if calls % 3 == (layer + 1) % 3 and 0 < start <= 68 < context:
                out[first + 68 - start, 0, 0] += 0.125
        return out

    monkeypatch.setattr(attention, "attend", broken)
    requests = tiny_requests()[4:14:9]
    assert {len(request.prompt) for request in requests} == {69}  # the position that draws the first token
    with loaded(family("gemma3"), "float32", best_isa) as model:
        plain = model.run(PLAIN, requests)
        problem = mismatch(model.run(WAYS[0], requests), plain, requests)
    assert problem is not None
    assert f"first difference: layer {layer} attention, position 68 (max |difference| 0.125" in problem


def test_what_the_replay_cannot_see_is_said(family: Callable[[str], Path], best_isa: str) -> None:
    """A difference that no layer made: here, in the answer itself."""
    requests = tiny_requests()[1:3]
    with loaded(family("llama"), "float32", best_isa) as model:
        plain = model.run(PLAIN, requests)
        found = model.run(WAYS[0], requests)
    first = found.answers[0][0]
    found.answers[0][0] = dataclasses.replace(
        first, token_ids=(*first.token_ids[:-1], first.token_ids[-1] ^ 1)
    )
    problem = mismatch(found, plain, requests)
    assert problem is not None
    assert "token_ids differ; replayed kernel by kernel, the runs agree" in problem
