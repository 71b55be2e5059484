"""A peer that sends a daemon whatever it likes, over one connection at a time: what those of both wires share."""

import json
import random
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Self, TypeVar

from tests.processes import PATIENCE_SECONDS

LAST: Final = 2**31 - 1
"""The id of the request at the end of a burst, which is answered when all before it are."""
BURST: Final = 32
_RECEIVED_AT_ONCE: Final = 256 * 1024
_UNFINISHED_MAX: Final = 12


class RawPeer:
    """One connection at a time; a new one whenever the broker has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.answers: Counter[str] = Counter()
        self.largest = self.received = 0  # bytes of a response, and of all
        self._sock: socket.socket | None = None

    def connected(self) -> socket.socket:
        if self._sock is None:
            self.connections += 1
            self._sock = self.open()
            self.begin(self._sock)
        return self._sock

    def open(self) -> socket.socket:
        """A new connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def begin(self, sock: socket.socket) -> None:
        """Prepare for a new connection, in a subclass."""
        raise NotImplementedError

    def wait_for(self, request_id: int) -> object:
        """Read until a response, in a subclass; nothing true if the broker closed the connection."""
        raise NotImplementedError

    def send(self, *frames: bytes) -> bool:
        """Send bytes; False if the broker closed the connection."""
        try:
            self.connected().sendall(b"".join(frames))
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close()
            return False
        return True

    def receive(self) -> bytes:
        """Some bytes; none if the broker closed the connection. Raises TimeoutError if it hangs."""
        assert self._sock is not None
        try:
            data = self._sock.recv(_RECEIVED_AT_ONCE)
        except (ConnectionResetError, ssl.SSLError):
            data = b""
        if not data:
            self.close()
        self.received += len(data)
        return data

    def is_answered(self, seconds: float) -> bool:
        """Whether the last request of a burst gets a response, in so long.

        It gets none if a changed length makes the broker wait for more.
        """
        self.connected().settimeout(seconds)
        try:
            return bool(self.wait_for(LAST))
        except TimeoutError:
            return False
        finally:
            if self._sock is not None:
                self._sock.settimeout(PATIENCE_SECONDS)

    def another(self) -> Self:
        """A peer like this one."""
        return type(self)(self.port)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def send_bursts(
    peer: RawPeer,
    count: int,
    dice: random.Random,
    make: Callable[[int], tuple[bytes, bool]],
    end: bytes,
    patience: float = PATIENCE_SECONDS,
) -> int:
    """Send ``count`` frames of ``make``, which says of each if its connection may end with it, a few at a time.

    ``end`` is answered behind each few. A connection that may not end is waited for with ``patience`` (seconds).
    """
    sent = 0
    while sent < count:
        burst: list[bytes] = []
        may_end = False
        size = min(BURST, count - sent)
        while size and not may_end:
            data, may_end = make(sent + 1)
            burst.append(data)
            sent, size = sent + 1, size - 1
        if dice.random() < 0.01:
            data = b"".join(burst)
            peer.send(data[: dice.randrange(len(data))])
            peer.close()
        elif peer.send(*burst, end) and not peer.is_answered(min(patience, 0.1) if may_end else patience):
            assert may_end or patience < PATIENCE_SECONDS, "the broker closed a connection that it should not have"
            peer.close()
    return sent


PeerT = TypeVar("PeerT", bound=RawPeer)


class Unfinished(Generic[PeerT]):
    """Connections whose frame never comes to its end, a few at a time."""

    def __init__(self, peer: PeerT) -> None:
        self._peer = peer
        self._open: list[PeerT] = []

    def begin(self, head: bytes, dice: random.Random) -> None:
        """Announce a frame and send a part of it."""
        if len(self._open) >= _UNFINISHED_MAX:
            self._open.pop(0).close()
        other = self._peer.another()
        other.send(head + bytes(dice.choice([0, 100, 65_536, 1_000_000])))
        self._open.append(other)

    def close(self) -> None:
        for other in self._open:
            other.close()


def run(make: Callable[[int], PeerT], **senders: Callable[[PeerT, int, random.Random], int]) -> None:
    """The program of a peer: ``PORT KIND COUNT SEED``."""
    port, kind, count, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    peer = make(port)
    sent = senders[kind](peer, count, random.Random(seed))
    peer.close()
    told = {"sent": sent, "connections": peer.connections, "answers": peer.answers}
    print(json.dumps(told | {"largest": peer.largest, "received": peer.received}))
