from hypothesis import given
from hypothesis import strategies as st

from octavo.grammar.lru import ByteBoundedLru


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 40))))
def test_recently_used_entries_are_kept_within_the_limit(calls: list[tuple[bool, int, int]]) -> None:
    """Compare with a list in order of use."""
    cache: ByteBoundedLru[int, int] = ByteBoundedLru(100)
    model: list[tuple[int, int]] = []  # (key, bytes), most recently used last; the bytes are also the value
    for is_put, key, size in calls:
        found = next((entry for entry in model if entry[0] == key), None)
        if is_put:
            cache.put(key, size, size)
            model = [entry for entry in model if entry[0] != key] + [(key, size)]
            while sum(entry[1] for entry in model) > 100:
                del model[0]
        else:
            assert cache.get(key) == (None if found is None else found[1])
            if found is not None:
                model = [entry for entry in model if entry != found] + [found]
        assert cache.num_bytes == sum(entry[1] for entry in model) <= 100
        assert len(cache) == len(model)


def test_entries_larger_than_the_cache_are_not_kept() -> None:
    cache: ByteBoundedLru[str, str] = ByteBoundedLru(10)
    cache.put("small", "x", 5)
    cache.put("large", "x", 11)
    assert cache.get("small") == "x"
    assert cache.get("large") is None
    cache.put("small", "x", 11)
    assert len(cache) == cache.num_bytes == 0
