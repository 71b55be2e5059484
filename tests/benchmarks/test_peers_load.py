"""The load generator: it counts replies however they are cut, and never has more requests unanswered than it may."""

import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import BenchmarkError
from benchmarks.peers import load
from benchmarks.peers.jobs import exchange_job, flood_job
from benchmarks.processes import bare_server

FRAME = struct.pack(">i", 20) + bytes(20)


def reply(size: int) -> bytes:
    return struct.pack(">i", size) + b"r" * size


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30), cuts=st.lists(st.integers(1, 60)))
def test_replies_are_counted_wherever_reads_end(sizes: list[int], cuts: list[int]) -> None:
    sizes.sort()  # they grow with the offsets in them
    sent = b"".join(map(reply, sizes))
    whole = 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        counter = load.ReplyCounter(ours)
        ends = list(accumulate(4 + size for size in sizes))
        position = 0
        for cut in [*cuts, len(sent)]:
            piece = sent[position : position + cut]
            if not piece:
                break
            theirs.sendall(piece)
            position += len(piece)
            whole += counter.receive()
            assert whole == sum(end <= position for end in ends)
    assert position == len(sent)
    assert whole == len(sizes)


def test_a_server_that_hangs_up_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BenchmarkError, match="hung up"):
        load.ReplyCounter(ours).receive()


class Server(threading.Thread):
    """Answers requests on each of its sockets as they come, and notes how many were unanswered at most."""

    def __init__(self, *socks: socket.socket) -> None:
        super().__init__(daemon=True)
        self.socks = socks
        self.unanswered_max = 0
        self.requests = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for served in self.socks:
                selector.register(served, selectors.EVENT_READ)
            received = dict.fromkeys(self.socks, 0)
            while selector.get_map():
                for key, _ in selector.select():
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    data = sock.recv(1 << 16)
                    if not data:
                        selector.unregister(sock)
                        continue
                    waiting, received[sock] = divmod(received[sock] + len(data), len(FRAME))
                    self.requests += waiting
                    self.unanswered_max = max(self.unanswered_max, waiting)
                    sock.sendall(reply(9) * waiting)


def ticks() -> Callable[[], float]:
    """A clock that goes on by one each time it is read."""
    numbers = count()
    return lambda: float(next(numbers))


@pytest.mark.parametrize(("connections", "depth"), [(1, 1), (1, 64), (3, 1), (3, 16)])
def test_a_flood_is_answered_to_its_end_and_no_deeper_than_asked_for(connections: int, depth: int) -> None:
    pairs = [socket.socketpair() for _ in range(connections)]
    server = Server(*(theirs for _, theirs in pairs))
    server.start()
    ours = [mine for mine, _ in pairs]
    answered, seconds = load.flood(ours, [FRAME], depth=depth, seconds=50, bytes_max=1 << 30, clock=ticks())
    for mine in ours:
        mine.close()
    server.join(30)
    for _, theirs in pairs:
        theirs.close()
    assert not server.is_alive()
    assert answered == server.requests > depth * connections
    assert server.unanswered_max <= depth
    assert seconds > 50


def test_a_flood_ends_when_it_has_sent_so_many_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    server = Server(theirs)
    server.start()
    answered, _ = load.flood([ours], [FRAME], depth=4, seconds=1e9, bytes_max=100 * len(FRAME), clock=ticks())
    ours.close()
    server.join(30)
    assert answered == server.requests
    assert 100 <= answered < 104


def test_requests_in_turn_are_each_answered_before_the_next(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    server = Server(theirs)
    server.start()
    times, received = load.exchanges(ours, [FRAME, FRAME], seconds=10, clock=ticks())
    ours.close()
    server.join(30)
    assert len(times) == server.requests > 2
    assert received == len(times) * len(reply(9))
    assert server.unanswered_max == 1


@pytest.mark.parametrize(
    ("loop", "connections"), [(("write",), 1), (("sync",), 1), (("writes",), 5), (("syncs", "--files", "1"), 5)]
)
def test_the_bare_loops_answer_what_the_load_process_sends(
    tmp_path: Path, loop: tuple[str, ...], connections: int
) -> None:
    place = str(tmp_path if loop[0] == "syncs" else tmp_path / "sink")
    with bare_server(*loop, place) as port:
        job = flood_job(port, FRAME, greeting=b"", connections=connections, depth=8, seconds=0.0, bytes_max=1)
        found = load.run(job)
        assert found["answered"] == 8 * connections
        assert found["seconds"] > 0
        found = load.run(exchange_job(port, [FRAME, FRAME], greeting=FRAME, seconds=0.01))
        assert found["answered"] > 0
        assert found["p50"] <= found["p99"]


@pytest.mark.parametrize("loop", ["write", "writes"])
def test_the_bare_loops_write_every_byte_of_requests_however_they_are_cut(tmp_path: Path, loop: str) -> None:
    sink = tmp_path / "sink"
    requests = [struct.pack(">i", size) + bytes([65 + size % 26]) * size for size in (1, 0, 5, 300, 7)]
    with bare_server(loop, str(sink)) as port, load.open_connection(port) as sock:
        sent = b"".join(requests)
        counter = load.ReplyCounter(sock)
        whole = 0
        for position in range(0, len(sent), 3):
            sock.sendall(sent[position : position + 3])
        while whole < 5:
            whole += counter.receive()
        assert sink.read_bytes() == b"".join(request[4:] for request in requests)
