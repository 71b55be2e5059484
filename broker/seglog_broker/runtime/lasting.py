"""Problems that last, as the log tells them: one line when a problem begins, and one when it ends."""

from collections.abc import Hashable
from typing import Final

KEYS_MAX: Final = 64
"""Of a ``Recurring``: clients choose them."""


class Lasting:
    """Tells which failures of something that is tried again and again are news.

    Keys name what fails; keep them few, as one is held for as long as its problem lasts. It may not be shared between
    threads.
    """

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}

    def begins(self, key: Hashable, reason: str) -> bool:
        """Note a failure. Whether it is to be logged: its problem is new, or has another reason than before."""
        is_news = self._reasons.get(key) != reason
        self._reasons[key] = reason
        return is_news

    def ends(self, key: Hashable) -> bool:
        """Note a success. Whether it is to be logged: it ends a problem."""
        return self._reasons.pop(key, None) is not None


class Recurring:
    """Tells when a failure that is none by itself has come several times in a row.

    Of its keys those that failed last are held.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._counts: dict[Hashable, int] = {}

    def begins(self, key: Hashable) -> bool:
        """Note a failure. Whether it is to be logged: it is the last of so many."""
        count = self._counts.pop(key, 0) + 1
        if len(self._counts) >= KEYS_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = count
        return count == self._times

    def ends(self, key: Hashable) -> bool:
        """Note a success. Whether it is to be logged: it ends what was."""
        return self._counts.pop(key, 0) >= self._times
