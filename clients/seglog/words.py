"""Numbers in sentences."""


def count_of(count: int, thing: str) -> str:
    """``1 record``, ``1,000 records``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
