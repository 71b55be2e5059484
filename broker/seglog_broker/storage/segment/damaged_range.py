"""A range of offsets that cannot be read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets [start_offset, end_offset) that cannot be read, and the bytes of one segment in their place.

    ``reason`` is "damaged" (bytes [position, end_position) are no valid batches) or "missing" (there are no bytes: both
    positions are that of the hole).
    """

    start_offset: int
    end_offset: int
    segment: int
    position: int
    end_position: int
    reason: str = "damaged"
