"""A client on asyncio, and the TCP sockets of its connections.

Sockets are read and written by this module itself, not by asyncio's streams: what a system call has moved is known at
once, so that a cancelled call has moved nothing, and bytes are received where they are wanted, without a copy.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence

from seglog.asynchronous.client import Face
from seglog.asynchronous.loop import Transport
from seglog.asyncio.loop import AsyncioLoop
from seglog.core.dialing import Address


class SocketTransport:
    """Owns a connected TCP socket that does not block; one task reads and one writes at a time."""

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connected
        self._loop = loop
        self._waiters: set[asyncio.Future[None]] = set()
        self._has_waited = True
        """Whether the last ``receive_into`` waited: else the next one lets other tasks run."""

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """As in Transport, in one system call."""
        while True:
            try:
                return self._socket.sendmsg(buffers)
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def receive_into(self, buffer: memoryview) -> int:
        """As in Transport, without a copy."""
        if not self._has_waited:
            await asyncio.sleep(0)
        self._has_waited = False
        while True:
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                self._has_waited = True
                await self._ready(self._loop.add_reader, self._loop.remove_reader)

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        """Wait until the socket can be read, or written, or is closed."""
        ready = self._loop.create_future()
        number = self._socket.fileno()
        add(number, _settle, ready)
        self._waiters.add(ready)
        try:
            await ready
        finally:
            self._waiters.discard(ready)
            if self._socket.fileno() == number:
                remove(number)

    def close(self) -> None:
        """As in Transport: a closed socket's calls fail with EBADF."""
        number = self._socket.fileno()
        if number < 0:
            return
        if self._waiters:
            self._loop.remove_reader(number)
            self._loop.remove_writer(number)
        for ready in self._waiters:
            _settle(ready)
        self._socket.close()


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def open_socket(address: Address) -> Transport:
    """Connect to the first address of the host that answers. Raises OSError with the reason when none does."""
    loop = asyncio.get_running_loop()
    reason = OSError(errno.EADDRNOTAVAIL, f"{address[0]} has no address")
    for family, kind, protocol, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connected, place)
        except OSError as error:
            connected.close()
            reason = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        except BaseException:
            connected.close()
            raise
        else:
            return SocketTransport(connected, loop)
    raise reason


connect = Face(AsyncioLoop, open_socket).connect
