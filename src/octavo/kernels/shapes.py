"""Limits of the native attention. Needs neither torch nor the library."""

NATIVE_BLOCK = 32  # tokens: two tiles of keys


def native_problem(block_size: int, head_dim: int) -> str | None:
    """Return why the native attention does not support these sizes, or None if it does."""
    if block_size % NATIVE_BLOCK:
        return f"block_size {block_size} is not a multiple of {NATIVE_BLOCK}"
    if head_dim % 16 or head_dim > 256:
        return f"head size {head_dim} is not a multiple of 16 up to 256"
    return None
