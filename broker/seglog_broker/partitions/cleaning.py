"""The mark of a round of compaction on its partition, which can be stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from seglog_broker.partitions.partition import Partition


@contextmanager
def cleaning(partition: Partition) -> Iterator[trio.CancelScope]:
    """Mark a round of compaction. The scope is cancelled when the round must stop."""
    scope, ended = trio.CancelScope(), trio.Event()
    partition.cleaning = scope, ended
    try:
        yield scope
    finally:
        partition.cleaning = None
        ended.set()


async def stop_cleaning(partition: Partition) -> None:
    """Prevent new rounds of compaction, cancel the running one, and return when it has ended."""
    partition.may_be_cleaned = False
    if partition.cleaning is not None:
        scope, ended = partition.cleaning
        scope.cancel()
        await ended.wait()
