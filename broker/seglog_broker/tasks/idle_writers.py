"""Keeps the limit of open files: writers without recent appends are synced and closed while it is exceeded."""

from typing import Final, Protocol

import trio

from seglog_broker.partitions.idle_writers import IdleWriters

LOOK_SECONDS: Final = 0.5


class Services(Protocol):
    """What this task uses of the broker."""

    idle_writers: IdleWriters


async def run_idle_writers(broker: Services) -> None:
    """Check the pool of handles every LOOK_SECONDS."""
    while True:
        await trio.sleep(LOOK_SECONDS)
        await broker.idle_writers.keep_limit()
