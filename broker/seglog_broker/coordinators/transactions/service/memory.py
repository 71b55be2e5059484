"""The memory that transactional ids take, which has a limit: a client can bring as many as it likes."""

from collections.abc import Callable
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_protocol.errors import CoordinatorNotAvailableError

KEY: Final = "seglog.transactions.memory.bytes"

CROWDED_PART: Final = 0.9
"""From this part of the limit on, ids that are idle are forgotten before they expire."""
ROOMY_PART: Final = 0.75
"""Until it is no more than this part."""

log = get_logger()


class TransactionMemory:
    """Counts what transactional ids take."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit: Final = limit
        self.crowded = trio.Event()
        """Set while idle ids should be forgotten; whoever begins to do that puts a new one in its place."""
        self._sizes: Final[dict[str, int]] = {}
        self._is_full = False
        self.used = 0
        """Bytes."""

    def note(self, transactional_id: str, size: int) -> None:
        """Note that an id takes ``size`` bytes; 0: it is gone."""
        self.used += size - self._sizes.get(transactional_id, 0)
        if size:
            self._sizes[transactional_id] = size
        else:
            self._sizes.pop(transactional_id, None)
        if self.used > self._limit() * CROWDED_PART:
            self.crowded.set()

    @property
    def excess(self) -> int:
        """Bytes that should be made free; 0 where there is room."""
        limit = self._limit()
        return self.used - int(limit * ROOMY_PART) if self.used > limit * CROWDED_PART else 0

    def check(self, transactional_id: str, size: int) -> None:
        """Raise CoordinatorNotAvailableError if there are no ``size`` bytes more for an id."""
        limit = self._limit()
        if self.used + size <= limit:
            self._is_full = False
            return
        self.crowded.set()
        if not self._is_full:
            self._is_full = True
            log.warning(
                "transactions_refused",
                transactional_id=transactional_id[:100],
                key=KEY,
                limit=limit,
                used=self.used,
                remedy="raise the key",
            )
        raise CoordinatorNotAvailableError(
            f"transactions take {self.used:,} bytes, and {KEY} is {limit:,}: no {size:,} more for "
            f"{transactional_id[:100]}; try again, use fewer transactional ids, or raise the key"
        )
