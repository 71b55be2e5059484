"""Warns of commits beyond the ends of their logs. They are taken, as in Kafka."""

from typing import Final

import structlog
import trio

from seglog_broker.coordinators.groups.committed_offsets import Key
from seglog_broker.partitions.partition_table import PartitionTable

LINES_AN_HOUR: Final = 100
"""Lines in the log; a partition of a group has one an hour."""

log = structlog.get_logger()


class BeyondEnd:
    """Warns of each partition of a group at most once an hour."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._told: set[tuple[str, Key]] = set()
        self._told_from = 0.0  # loop time

    def look(self, group: str, key: Key, offset: int) -> None:
        """Warn if ``offset``, which ``group`` commits, is beyond the log end. Says nothing of a log out of service."""
        partition = self._table.find_readable(*key)
        if partition is None or offset <= (end := partition.log.log_end_offset):
            return
        now = trio.current_time()
        if now - self._told_from >= 3_600:
            self._told.clear()
            self._told_from = now
        if len(self._told) < LINES_AN_HOUR and (group, key) not in self._told:
            self._told.add((group, key))
            log.warning(
                "committed_beyond_log_end",
                group=group,
                topic=key[0],
                partition=key[1],
                offset=offset,
                log_end_offset=end,
                consequence="a member that begins there goes on where its own settings say, at the latest or earliest "
                "record; after a restart of the broker the group goes on at the end of the log",
            )
