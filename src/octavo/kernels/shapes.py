"""What the native attention can do. Needs neither torch nor the library."""

NATIVE_PAGE = 32  # tokens: two tiles of keys


def native_problem(page_size: int, head_dim: int) -> str | None:
    """Why pages and heads of these sizes are left to torch, if they are."""
    if page_size % NATIVE_PAGE:
        return f"page_size {page_size} is not a multiple of {NATIVE_PAGE}"
    if head_dim % 16 or head_dim > 256:
        return f"heads of {head_dim} are not a multiple of 16 up to 256"
    return None
