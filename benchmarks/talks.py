"""Talks: connections on each of which a request follows the answer to the one before, which may say what is next.

Requests are encoded before the clock runs. Fields that depend on an earlier answer are patched in the encoded bytes.
"""

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from benchmarks.group_wire import Replies, nothing
from benchmarks.harness import BenchmarkError
from benchmarks.raw_client import SOCKET_SECONDS_MAX, open_socket
from seglog_protocol.frames import decode_map


class Talk(Protocol):
    """What one connection asks."""

    @property
    def framing(self) -> type[Replies]:
        """How replies are found in the bytes that come."""
        ...

    def begin(self, replies: Replies) -> None:
        """Ask what comes before the clock runs."""
        ...

    def request(self) -> bytes | bytearray | None:
        """The next request; None where that was all."""
        ...

    def answered(self, reply: bytes) -> int:
        """Take the answer to it; how much it counts, and so may be the last. Raises BenchmarkError for an error."""
        ...


def converse(port: int, talks: Sequence[Talk], seconds: float) -> tuple[int, float]:
    """A connection for each talk, until an answer counts after ``seconds``; what counted, and seconds to the last."""
    with ExitStack() as stack, select.epoll(len(talks)) as poll:
        speakers: dict[int, tuple[Replies, Talk]] = {}
        for talk in talks:
            replies = talk.framing(stack.enter_context(open_socket(port)))
            talk.begin(replies)
            poll.register(replies.sock, select.EPOLLIN)
            speakers[replies.sock.fileno()] = replies, talk
        counted = waiting = 0
        began = last = time.perf_counter()
        ends = began + seconds
        for replies, talk in speakers.values():
            if (first := talk.request()) is not None:
                replies.sock.sendall(first)
                waiting += 1
        while waiting:
            for descriptor, _ in poll.poll(SOCKET_SECONDS_MAX) or nothing():
                replies, talk = speakers[descriptor]
                for reply in replies.receive():
                    counts = talk.answered(reply)
                    counted += counts
                    last = time.perf_counter() if counts else last
                    following = None if counts and last >= ends else talk.request()
                    if following is None:
                        waiting -= 1
                        poll.unregister(descriptor)
                        break
                    replies.sock.sendall(following)
        return counted, last - began


def header_of(reply: bytes) -> dict[str, Any]:
    """Of a frame of the native protocol without its length. Raises BenchmarkError for an error in it."""
    header = reply[4 : 4 + int.from_bytes(reply[:4], "big")]
    if b"error" in header:
        raise BenchmarkError(f"the daemon answered {decode_map(header, 'header')}")
    return decode_map(header, "header")


class Repeated:
    """Requests that do not depend on answers, each of which has to be the first one, byte for byte."""

    framing = Replies

    def __init__(self, frames: Iterator[bytes], greetings: Sequence[bytes] = ()) -> None:
        """``greetings`` are asked natively before the clock runs."""
        self._frames = frames
        self._greetings = greetings
        self._expected = b""

    def begin(self, replies: Replies) -> None:
        """``Talk.begin``."""
        for greeting in self._greetings:
            header_of(replies.ask_frame(greeting))

    def request(self) -> bytes | None:
        """``Talk.request``."""
        return next(self._frames, None)

    def answered(self, reply: bytes) -> bool:
        """``Talk.answered``."""
        self._expected = self._expected or reply
        if reply != self._expected:
            raise BenchmarkError(f"a request was answered with {reply!r:.300}")
        return True
