"""The end of a byte stream: waiting for the peer to leave, and closing so that the last bytes arrive."""

import contextlib
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport

CLOSE_SECONDS_MAX: Final = 1
CLOSE_BYTES_MAX: Final = 256 * 1024
"""Time, and bytes, that the peer may go on sending while its connection is closed; the bytes are discarded."""

CHECK_SECONDS: Final = 1
"""The pause between two looks at a peer whose next requests wait to be read: these keep its socket readable, so that
readiness does not tell whether it has left."""


async def wait_until_left(transport: Transport) -> None:
    """Return when the peer has finished sending, or is lost. Receives nothing."""
    while True:
        await transport.wait_readable()
        if transport.has_left():
            return
        await trio.sleep(CHECK_SECONDS)


async def finish(transport: Transport) -> None:
    """Send no more, and receive until the peer closes or a limit is reached, so that what was sent arrives.

    Closing a socket that holds unread bytes resets the connection, and the last reply may be lost with it.
    """
    with trio.move_on_after(CLOSE_SECONDS_MAX), contextlib.suppress(OSError):
        transport.stop_sending()
        taken = 0
        while taken < CLOSE_BYTES_MAX:
            await transport.wait_readable()
            size = transport.receive_into(memoryview(bytearray(64 * 1024)))
            if size == 0:
                return
            taken += size
