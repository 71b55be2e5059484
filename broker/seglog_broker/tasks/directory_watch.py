"""The log directory, watched: a broker whose directory was removed or replaced stops, and says why.

On a file that has lost its name every write and every fsync still succeeds. Rounds of the group commit look for
themselves (``group_commit``), so that no ack of ``disk`` is wrong meanwhile; the rest is noticed here.
"""

from typing import TYPE_CHECKING, Final

import trio

from seglog_protocol.errors import LogDirectoryError

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker

LOOK_SECONDS: Final = 2.0
"""Between two looks."""


async def run_presence(broker: "Broker") -> None:
    """Look every now and then. Raises LogDirectoryError, which ends the broker, when the directory is gone."""
    while True:
        if not broker.directory.is_in_place:
            path = broker.directory.path
            raise LogDirectoryError(
                f"{path} was removed or replaced while the broker was running, so it has stopped: nobody would find "
                "what it takes. Put the directory back, if there is one, and start the broker again",
                path=path,
            )
        await trio.sleep(LOOK_SECONDS)
