"""A durable queue of RabbitMQ, and workers that send a Basic.Ack for each job, in AMQP 0-9-1 made by hand.

An acknowledgement has no answer but further jobs, which are pushed.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.group_wire import Replies, when_loaded
from benchmarks.peers.jobs import LoadProcess
from benchmarks.peers.results import Measure
from benchmarks.peers.servers import PeerServer
from benchmarks.queues.common import JOB, NOT_YET, QUEUE, Queue
from benchmarks.raw_client import open_socket

_FRAME: Final = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY = 1, 2, 3


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def _call(class_: int, method: int, arguments: bytes, channel: int = 1) -> bytes:
    return _frame(_METHOD, struct.pack(">HH", class_, method) + arguments, channel)


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


_OPEN: Final = b"".join(
    (
        b"AMQP\0\0\x09\x01",
        _call(10, 11, _long(b"") + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US"), 0),
        _call(10, 31, struct.pack(">HIH", 1, 131_072, 0), 0),
        _call(10, 40, _short("/") + b"\0\0", 0),
        _call(20, 10, b"\0"),
    )
)
"""Log in, and open a channel: answers need not be waited for."""

_DELETE: Final = _call(50, 40, bytes(2) + _short(QUEUE) + b"\0")
_JOB: Final = b"".join(
    (
        _call(60, 40, bytes(2) + _short("") + _short(QUEUE) + b"\0"),
        _frame(_HEADER, struct.pack(">HHQHB", 60, 0, len(JOB), 0x1000, 2)),  # of all properties, that it is persistent
        _frame(_BODY, JOB),
    )
)
_COUNT: Final = struct.pack(">HH", 50, 11) + _short(QUEUE)
"""Comes before the number of jobs in the answer to ``_declaration``."""


def _declaration(kind: str) -> bytes:
    """Declare a durable queue, ``classic`` or ``quorum``."""
    table = _long(_short("x-queue-type") + b"S" + _long(kind.encode()))
    return _call(50, 10, bytes(2) + _short(QUEUE) + b"\2" + table)


class RabbitReplies(Replies):
    """Jobs: all that have come whole are one reply, of so many bytes."""

    def split(self, held: bytes) -> tuple[list[bytes], bytes]:
        """``Replies.split``."""
        at = jobs = 0
        while (end := at + 8 + int.from_bytes(held[at + 3 : at + 7], "big")) <= len(held):
            jobs += held[at] == _BODY
            at = end
        return [bytes(jobs)] if jobs else [], held[at:]


class RabbitWorker:
    """A ``Talk`` of a consumer, to which so many jobs are sent as it may hold."""

    framing: Final = RabbitReplies

    def __init__(self, _number: int, _run: int, at_once: int) -> None:
        limit = _call(60, 10, struct.pack(">IHB", 0, at_once, 0))
        self._consume = _OPEN + limit + _call(60, 20, bytes(2) + _short(QUEUE) + _short("") + b"\0" + _long(b""))
        self._tag = self._held = 0

    def begin(self, replies: Replies) -> None:
        """``Talk.begin``: hold the first jobs."""
        self._held = len(replies.ask_frame(self._consume))

    def request(self) -> bytes:
        """``Talk.request``: acknowledge each job that is held."""
        first, self._tag = self._tag + 1, self._tag + self._held
        return b"".join([_call(60, 80, struct.pack(">QB", tag, 0)) for tag in range(first, self._tag + 1)])

    def answered(self, reply: bytes) -> int:
        """``Talk.answered``."""
        count, self._held = self._held, len(reply)
        return count


class _Beam(NamedTuple):
    """Of RabbitMQ the port of AMQP, and the process of Erlang."""

    port: int
    pid: int


class RabbitQueue(Queue):
    """A durable queue, filled anew for each run."""

    talk = "jobs, rabbitmq"

    def __init__(self, server: PeerServer, load: LoadProcess, jobs: int, kind: str) -> None:
        [pid] = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        super().__init__(_Beam(server.port + 1, int(pid)), load, jobs)
        self._declare = _declaration(kind)

    def begin(self, _group: str) -> None:
        """``Queue.begin``."""
        with open_socket(self.server.port) as sock:
            sock.sendall(_OPEN + _DELETE + self._declare + _JOB * self.jobs)
            when_loaded(lambda: 0 if self._count() == self.jobs else NOT_YET, "Basic.Publish")

    def work(self, workers: int, at_once: int, seconds: float) -> Measure:
        """``Queue.work``, for half the time: workers would wait for ever for more jobs than there are."""
        return super().work(workers, at_once, seconds / 2)

    def _count(self) -> int:
        said, count = b"", b""
        with open_socket(self.server.port) as sock:
            sock.sendall(_OPEN + self._declare)
            while len(count := said.partition(_COUNT)[2]) < 4:
                said += sock.recv(4096)
        return int.from_bytes(count[:4], "big")
