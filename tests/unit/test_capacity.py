"""KV arithmetic: the printed explanation matches the plan."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import capacity
from octavo.capacity import KVPlan, KVShape, free_memory, plan_kv
from octavo.errors import CapacityError

SMOLLM2 = KVShape(num_layers=30, num_kv_heads=3, head_dim=64, item_bytes=4)


def plan(**changes: int | float | KVShape | None) -> KVPlan:
    values: dict[str, int | float | KVShape | None] = {
        "free_bytes": 8 << 30,
        "fraction": 0.5,
        "kv_memory": None,
        "block_size": 32,
        "max_model_len": None,
        "model_max_len": 8192,
    }
    return plan_kv(SMOLLM2, **(values | changes))  # type: ignore[arg-type]


def test_engines_share_the_free_memory() -> None:
    alone, one_of_four = plan(), plan(num_engines=4)
    assert alone.num_blocks // 4 == one_of_four.num_blocks
    assert "0.5 / 4 engines" in one_of_four.explanation[0]
    assert plan(kv_memory=1 << 30, num_engines=4) == plan(kv_memory=1 << 30), "kv_memory is of each engine"


def test_a_draft_model_takes_its_part_of_each_token() -> None:
    alone, shared = plan(), plan(draft_shape=KVShape(10, 3, 64, 4))
    assert shared.bytes_per_token == alone.bytes_per_token * 4 // 3
    assert shared.num_blocks == (4 << 30) // (32 * shared.bytes_per_token)
    assert "60.00 KiB" in shared.explanation[2]
    assert "32 tokens x 60.00 KiB" in shared.explanation[3]


@given(
    memory=st.integers(0, 1 << 32),
    block_size=st.integers(0, 4096),
    max_model_len=st.none() | st.integers(1, 200_000),
    model_max_len=st.integers(1, 131_072),
)
def test_blocks_never_exceed_the_budget_and_always_hold_one_context(
    memory: int, block_size: int, max_model_len: int | None, model_max_len: int
) -> None:
    try:
        made = plan(
            kv_memory=memory, block_size=block_size, max_model_len=max_model_len, model_max_len=model_max_len
        )
    except CapacityError:
        smallest_block = block_size or 1
        assert memory < max(smallest_block, max_model_len or 1) * SMOLLM2.bytes_per_token + (
            (block_size or 0) * SMOLLM2.bytes_per_token
        )
        return
    used = made.num_tokens * SMOLLM2.bytes_per_token
    assert used <= memory < used + made.block_size * SMOLLM2.bytes_per_token
    assert made.max_model_len <= made.num_tokens
    assert made.max_model_len <= model_max_len
    if max_model_len is not None:
        assert made.max_model_len == min(max_model_len, model_max_len)
    if block_size == 0:
        assert made.block_size == made.max_model_len


def test_the_explanation_adds_up() -> None:
    made = plan()
    text = "\n".join(made.explanation)
    assert "8.00 GiB free x 0.5 = 4.00 GiB" in text
    layers, heads, dims, item = map(
        int,
        re.search(r"(\d+) layers x 2 \(key, value\) x (\d+) heads x (\d+) x (\d+) B", text).groups(),  # type: ignore[union-attr]
    )
    assert layers * 2 * heads * dims * item == SMOLLM2.bytes_per_token == 46_080
    blocks = int(re.search(r"= ([\d,]+) blocks", text).group(1).replace(",", ""))  # type: ignore[union-attr]
    assert blocks == made.num_blocks == (4 << 30) // (32 * 46_080)


def test_a_container_limit_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 100000\n")
    monkeypatch.setattr(capacity, "CGROUP", tmp_path)
    assert free_memory() == 600_000
    # Mapped weights count as files, whether the kernel lists them as active or not.
    assert free_memory(mapped=70_000) == 530_000
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 30000\nactive_file 70000\n")
    assert free_memory(mapped=70_000) == free_memory() == 530_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 600_000


@pytest.mark.parametrize(
    ("num_sequences", "words"),
    [(1, "1 sequence of 32 tokens fits"), (2, "2 sequences of 32 tokens fit")],
)
def test_singular_and_plural_of_fitting_sequences(num_sequences: int, words: str) -> None:
    made = plan(kv_memory=num_sequences * 32 * SMOLLM2.bytes_per_token, model_max_len=32)
    assert made.explanation[-1] == words
