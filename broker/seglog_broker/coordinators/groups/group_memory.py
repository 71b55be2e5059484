"""Budgets for what clients make the broker keep: members of groups, and committed offsets.

Sizes are those of the bytes that clients sent, and what Python takes at most for the objects around them: the smallest
elements of a request, a byte each, become objects of some hundred.
"""

from collections.abc import Callable, Iterable
from typing import Final

from seglog_broker.logger import get_logger
from seglog_protocol.errors import CoordinatorNotAvailableError

GROUP_BYTES: Final = 2_000
"""Bytes that a group takes, without its name and members."""
MEMBER_BYTES: Final = 1_500
"""Bytes of a member, without its subscription and metadata, and of an id that was given to a consumer."""
NAME_BYTES: Final = 220
"""Bytes of a topic's name in a subscription, without its text."""
PROTOCOL_BYTES: Final = 350
"""Bytes of an assignor of a member of the classic protocol, without its name and metadata."""
TOPIC_BYTES: Final = 350
"""Bytes of a topic in an assignment, without its partitions."""
PARTITION_BYTES: Final = 300
"""Bytes of a partition that a member owns, with its epoch."""
NUMBER_BYTES: Final = 64
"""Bytes of the number of a partition in a set."""
OFFSET_BYTES: Final = 400
"""Bytes of a committed offset, without its topic's name and its text."""
PENDING_BYTES: Final = 1_400
"""Bytes of one that an open transaction has committed. Compiled, each dict has a copy of its key: 120 of them."""

FOR_NEW_PART: Final = 0.9
"""The part of a budget that new groups and members may fill. The rest is for existing ones that grow."""

log = get_logger()


def size_of_protocols(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Bytes that the assignors of a member take, each with its metadata."""
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class Budget:
    """A budget of one configuration key, used by groups. Those that are there already are refused last."""

    def __init__(self, key: str, what: str, limit: Callable[[], int]) -> None:
        """``what`` fills it, in words, for errors."""
        self._key: Final = key
        self._what: Final = what
        self._limit: Final = limit
        self._sizes: Final[dict[str, int]] = {}
        self._is_full = False
        self.used = 0
        """Bytes."""

    def note(self, group: str, size: int) -> None:
        """Note that a group takes ``size`` bytes; 0: it is gone."""
        self.used += size - self._sizes.get(group, 0)
        if size:
            self._sizes[group] = size
        else:
            self._sizes.pop(group, None)

    def check(self, group: str, size: int, *, is_new: bool) -> None:
        """Raise CoordinatorNotAvailableError where the limit has no room for ``size`` bytes more of a group.

        ``is_new`` for those that are not there yet, which are refused first.
        """
        limit = self._limit()
        if size <= 0 or self.used + size <= limit * (FOR_NEW_PART if is_new else 1):
            if self._is_full and self.used <= limit * FOR_NEW_PART / 2:
                self._is_full = False
                log.info("groups_taken_again", key=self._key, limit=limit, used=self.used)
            return
        if not self._is_full:
            self._is_full = True
            log.warning(
                "groups_refused", group=group[:100], key=self._key, limit=limit, used=self.used, remedy="raise the key"
            )
        raise CoordinatorNotAvailableError(
            f"{self._what} take {self.used:,} bytes, and {self._key} is {limit:,}: no {size:,} more for group "
            f"{group[:100]}; end some of them, or raise the key",
            group=group[:100],
        )
