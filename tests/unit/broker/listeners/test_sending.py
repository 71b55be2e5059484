"""Frames in parts: the system is told that more follows only where something does, as it would keep the rest back."""

import socket
from collections.abc import Sequence

import trio

from seglog_broker.listeners.sender import Sender
from seglog_broker.listeners.sending import send_frame
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.frame_receiver import Buffer
from tests.support import each_case


class Taking(Transport):
    """A transport that takes ``at_a_time`` bytes, and after each time nothing until it was waited for."""

    def __init__(self, at_a_time: int) -> None:
        super().__init__(socket.socket())
        self.close()
        self.taken = b""
        self.is_more_to_come = False
        self._at_a_time = at_a_time
        self._is_writable = True

    def send(self, data: Buffer, *, more: bool = False) -> int:
        if not self._is_writable:
            raise BlockingIOError
        self._is_writable = False
        sent = bytes(data)[: self._at_a_time]
        self.taken += sent
        if sent:
            self.is_more_to_come = more
        return len(sent)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        self._is_writable = True


@each_case("at_a_time", [1, 3, 100])
@each_case("chunks", [[b"head", b""], [b"head", b"payload"], [b"", b"head", b"", b"payload", b"", b""]])
async def test_behind_the_last_byte_of_a_frame_no_more_is_announced(at_a_time: int, chunks: Sequence[bytes]) -> None:
    transport = Taking(at_a_time)
    await send_frame(Sender(transport, InlineOffload(), Transfers(), 60), chunks)
    assert transport.taken == b"".join(chunks)
    assert not transport.is_more_to_come
