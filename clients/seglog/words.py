"""Numbers in sentences."""


def count_of(count: int, thing: str, *, many: str = "") -> str:
    """``1 record``, ``1,000 records``; ``many`` is the plural where it is not just an s."""
    return f"{count:,} {thing if count == 1 else many or f'{thing}s'}"
