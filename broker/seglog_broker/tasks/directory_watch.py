"""Watches the log directory: a broker whose directory was removed or replaced stops, and logs why.

Writes to a removed file, and its fsyncs, still succeed. Each round of group commit checks for this itself
(``group_commit``), so that no ack of ``disk`` is wrong; this task stops the broker.
"""

from typing import Final, Protocol

import trio

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_protocol.errors import LogDirectoryError

LOOK_SECONDS: Final = 2.0
"""Time between two checks."""


class Services(Protocol):
    """What this task uses of the broker."""

    directory: LogDirectory


async def run_directory_watch(broker: Services) -> None:
    """Check every LOOK_SECONDS. Raises LogDirectoryError, which ends the broker, when the directory is gone."""
    while True:
        if not broker.directory.lock.is_in_place:
            path = broker.directory.path
            raise LogDirectoryError(
                f"{path} was removed or replaced while the broker was running, so the broker has stopped: records "
                "that it wrote would be lost. Put the directory back, if you have it, and start the broker again",
                path=path,
            )
        await trio.sleep(LOOK_SECONDS)
