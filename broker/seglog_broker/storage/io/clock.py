"""Time in the storage engine: whole milliseconds since 1970, passed in by the owner of a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall time; tests and simulations bring their own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May jump in either direction, as wall clocks do."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000
