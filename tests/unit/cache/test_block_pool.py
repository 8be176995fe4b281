import pytest

from octavo.cache.block_pool import BlockPool
from octavo.errors import CapacityError


def test_the_last_released_block_is_taken_first() -> None:
    pool = BlockPool(8)
    assert pool.take(3) == [0, 1, 2]
    pool.give([1, 2])
    assert pool.take(3) == [1, 2, 3]
    assert pool.num_free == 4


def test_taking_zero_blocks_changes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.take(0) == []
    assert sorted(pool.free_ids()) == [0, 1]


def test_an_empty_pool_is_rejected() -> None:
    with pytest.raises(CapacityError, match="at least one block"):
        BlockPool(0)
