"""Changes of the partitions of a broker, for somebody who follows: kept only while there is one.

Appends, group commit and all that changes the files of a partition write it; who follows takes it with ``take``. What
is kept is bounded: by the partitions that there are, and by GONE_MAX of those that there are no more.
"""

from typing import Final

from seglog_broker.partitions.commit_round import Flushable

GONE_MAX: Final = 10_000
"""Deleted partitions that are remembered; with more of them, who follows has to look at all partitions anew."""


class Feed:
    """The changes of all partitions since the last ``take``, and how much was appended since ``follow``."""

    def __init__(self) -> None:
        self.is_followed = False
        self.records = 0
        """Appended, markers included."""
        self.size = 0
        """Bytes of them."""
        self.number = 0
        """How often changes were taken since ``begin``."""
        self.changed: dict[Flushable, None] = {}
        self.gone: dict[tuple[str, int], None] = {}
        """Topic and number of each partition that was deleted."""
        self.has_lost = True
        """There are more changes than these: who follows looks at all partitions."""
        self.replaced: dict[Flushable, None] = {}
        """Partitions of which files may have been replaced since the last ``take``."""

    def follow(self) -> None:
        """Keep changes from now on."""
        self.is_followed = True
        self.begin()

    def begin(self) -> None:
        """Forget what there is, for one who looks at all partitions first."""
        self.number = 0
        self.changed, self.gone, self.replaced = {}, {}, {}
        self.has_lost = True

    def take(self) -> tuple[list[Flushable], list[tuple[str, int]]]:
        """The partitions that have changed, and those that are gone, since the call before."""
        changed, gone = list(self.changed), list(self.gone)
        self.changed, self.gone, self.replaced = {}, {}, {}
        self.has_lost = False
        self.number += 1
        return changed, gone

    def note_written(self, partition: Flushable, size: int, records: int) -> None:
        """Batches were appended. Called only while somebody follows."""
        self.size += size
        self.records += records
        self.changed[partition] = None

    def note_changed(self, partition: Flushable, *, is_replaced: bool = False) -> None:
        """The segments or the log start are others; ``is_replaced``: a file may have been replaced by another one."""
        if not self.is_followed:
            return
        self.changed[partition] = None
        if is_replaced:
            self.replaced[partition] = None

    def note_deleted(self, partition: Flushable, key: tuple[str, int]) -> None:
        """The topic was deleted."""
        if not self.is_followed:
            return
        self.changed.pop(partition, None)
        self.replaced.pop(partition, None)
        if len(self.gone) < GONE_MAX:
            self.gone[key] = None
        else:
            self.has_lost = True
