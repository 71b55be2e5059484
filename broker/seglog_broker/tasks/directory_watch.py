"""The log directory, watched: a broker whose directory was removed or replaced stops, and says why.

On a file that has lost its name every write and every fsync still succeeds. Rounds of the group commit look for
themselves (``group_commit``), so that no ack of ``disk`` is wrong meanwhile; the rest is noticed here.
"""

from typing import Final, Protocol

import trio

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_protocol.errors import LogDirectoryError

LOOK_SECONDS: Final = 2.0
"""Between two looks."""


class Services(Protocol):
    """What this task uses of the broker."""

    directory: LogDirectory


async def run_presence(broker: Services) -> None:
    """Look every now and then. Raises LogDirectoryError, which ends the broker, when the directory is gone."""
    while True:
        if not broker.directory.lock.is_in_place:
            path = broker.directory.path
            raise LogDirectoryError(
                f"{path} was removed or replaced while the broker was running, so it has stopped: no start would find "
                "what it takes. Put the directory back, if there is one, and start the broker again",
                path=path,
            )
        await trio.sleep(LOOK_SECONDS)
