"""The bare loops: what is left when a broker does nothing but move bytes. Run as ``python -m benchmarks.bare``.

Each prints its port and serves until it is killed. Blocking sockets; requests are found by their length and not looked
into: no parsing, no checks, no index.
"""

import argparse
import os
import select
import selectors
import socket
from typing import Final

from seglog_broker.storage.io.fsync_queue import sync_in_kernel

RECEIVE_BYTES: Final = 1024 * 1024
PIECES_PER_WRITE: Final = 1024  # IOV_MAX
_REPLY_BODY: Final = b"base_offset".ljust(116, b".")  # about as long as the daemon's
REPLY: Final = len(_REPLY_BODY).to_bytes(4, "big") + _REPLY_BODY


def main() -> None:
    """Serve the loop that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare")
    loops = parser.add_subparsers(dest="loop", required=True)
    for name, help_text in (
        ("write", "receive, write, answer"),
        ("sync", "receive, write, fdatasync, answer"),
        ("writes", "receive from many, write, answer"),
        ("relay", "hand on what the first connection sends to the second, writing it too"),
    ):
        loops.add_parser(name, help=help_text).add_argument("path")
    sendfile = loops.add_parser("sendfile", help="answer every request with the next chunk of each file")
    sendfile.add_argument("--chunk", type=int, required=True)
    sendfile.add_argument("paths", nargs="+")
    loops.add_parser("wake", help="answer all waiting connections when the first one speaks")
    syncs = loops.add_parser("syncs", help="receive from many, write to many files, sync them at once, answer")
    syncs.add_argument("--files", type=int, required=True)
    syncs.add_argument("directory")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    if options.loop == "wake":
        wake(listener)
        return
    if options.loop == "writes":
        write_from_many(listener, options.path)
        return
    if options.loop == "syncs":
        sync_together(listener, options.directory, options.files)
        return
    while True:
        connection = accept(listener)
        with connection:
            if options.loop == "sendfile":
                send_files(connection, options.paths, options.chunk)
            elif options.loop == "relay":
                with accept(listener) as receiver:
                    relay(connection, receiver, options.path)
            else:
                write(connection, options.path, sync=options.loop == "sync")


def accept(listener: socket.socket) -> socket.socket:
    """The next connection, without delay for small answers."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _Writer:
    """Writes what one connection sends: one writev a read."""

    def __init__(self, connection: socket.socket, file: int) -> None:
        self._connection = connection
        self._file = file
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._left = 0  # bytes of a request still to come
        self._carried = 0  # bytes of a length that was cut in two

    def receive(self) -> int | None:
        """Receive once and write that; how many requests ended, None when the other side has hung up."""
        buffer, left = self._buffer, self._left
        size = self._connection.recv_into(buffer[self._carried :])
        if not size:
            return None
        size += self._carried
        position = min(left, size)
        pieces = [buffer[:position]]
        left -= position
        ended = int(position > 0 and not left)
        while size - position >= 4:
            left = int.from_bytes(buffer[position : position + 4], "big")
            start = position + 4
            position = min(start + left, size)
            pieces.append(buffer[start:position])
            left -= position - start
            if left:
                break
            ended += 1
        for number in range(0, len(pieces), PIECES_PER_WRITE):
            os.writev(self._file, pieces[number : number + PIECES_PER_WRITE])
        self._left, self._carried = left, size - position
        buffer[: self._carried] = buffer[position:size]
        return ended


def write(connection: socket.socket, path: str, *, sync: bool) -> None:
    """One writev a read, and with ``sync`` one fdatasync where a request ended; then the answers."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    try:
        writer = _Writer(connection, file)
        while (ended := writer.receive()) is not None:
            if ended:
                if sync:
                    os.fdatasync(file)
                connection.sendall(REPLY * ended)
    finally:
        os.ftruncate(file, 0)  # what is not on the disk yet need not get there
        os.close(file)


def write_from_many(listener: socket.socket, path: str) -> None:
    """One writev a read, to one file, and the answers, for any number of connections."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    writers: dict[int, tuple[socket.socket, _Writer]] = {}
    with select.epoll() as poll:
        poll.register(listener.fileno(), select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == listener.fileno():
                    connection = accept(listener)
                    writers[connection.fileno()] = connection, _Writer(connection, file)
                    poll.register(connection.fileno(), select.EPOLLIN)
                    continue
                connection, writer = writers[descriptor]
                ended = writer.receive()
                if ended is None:
                    poll.unregister(descriptor)
                    connection.close()
                    del writers[descriptor]
                    if not writers:
                        os.ftruncate(file, 0)  # what is not on the disk yet need not get there
                        os.lseek(file, 0, os.SEEK_SET)
                elif ended:
                    connection.sendall(REPLY * ended)


def send_files(connection: socket.socket, paths: list[str], chunk: int) -> None:
    """Answer each read with ``chunk`` bytes of every file, going round."""
    files = [os.open(path, os.O_RDONLY) for path in paths]
    try:
        rounds = max(1, min(os.fstat(file).st_size for file in files) // chunk)
        prefix = (chunk * len(files)).to_bytes(4, "big")
        target, number = connection.fileno(), 0
        while connection.recv(RECEIVE_BYTES):
            connection.send(prefix, socket.MSG_MORE)
            for file in files:
                position = number % rounds * chunk
                end = position + chunk
                while position < end:
                    position += os.sendfile(target, file, position, end - position)
            number += 1
    finally:
        for file in files:
            os.close(file)


def relay(sender: socket.socket, receiver: socket.socket, path: str) -> None:
    """What comes from one is written and handed on to the other."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    try:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        while size := sender.recv_into(buffer):
            os.write(file, buffer[:size])
            receiver.sendall(buffer[:size])
    finally:
        os.close(file)


def wake(listener: socket.socket) -> None:
    """The first connection speaks; all others that have asked since are answered, and then the first one."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        speaker: socket.socket | None = None
        waiting: list[socket.socket] = []
        while True:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is listener:
                    connection = accept(listener)
                    speaker = speaker or connection
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                if not sock.recv(RECEIVE_BYTES):
                    selector.unregister(sock)
                    sock.close()
                elif sock is speaker:
                    for waiter in waiting:
                        waiter.send(REPLY)
                    waiting.clear()
                    sock.send(REPLY)
                else:
                    waiting.append(sock)


class _Producer:
    """A connection of ``sync_together``."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests = 0
        self.rest = b""  # the beginning of a request


def partition_of(producer: int, number: int, partitions: int) -> int:
    """Where a producer's ``number``-th request goes: each begins somewhere else and goes round."""
    return (producer * 13 + number) % partitions


def sync_together(listener: socket.socket, directory: str, count: int) -> None:
    """Whatever has arrived from anybody is written, all files with something new are synced, all are answered."""
    files = [os.open(f"{directory}/{number}", os.O_CREAT | os.O_RDWR) for number in range(count)]
    producers: dict[socket.socket, _Producer] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            answers: list[tuple[socket.socket, int]] = []
            dirty: dict[int, None] = {}
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is listener:
                    connection = accept(listener)
                    producers[connection] = _Producer(len(producers))
                    selector.register(connection, selectors.EVENT_READ)
                elif data := sock.recv(RECEIVE_BYTES):
                    answers.append((sock, _write_requests(producers[sock], data, files, dirty)))
                else:
                    selector.unregister(sock)
                    sock.close()
                    del producers[sock]
                    if not producers:
                        for file in files:
                            os.ftruncate(file, 0)  # what is not on the disk yet need not get there
            for file, code in zip(dirty, sync_in_kernel(list(dirty)), strict=True):
                if code is None:
                    os.fdatasync(file)
            for sock, answered in answers:
                sock.sendall(REPLY * answered)


def _write_requests(producer: _Producer, data: bytes, files: list[int], dirty: dict[int, None]) -> int:
    """Write the whole requests in ``data``, each to its file; how many there were."""
    data = producer.rest + data if producer.rest else data
    position = written = 0
    while len(data) - position >= 4:
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            break
        file = files[partition_of(producer.number, producer.requests, len(files))]
        os.write(file, memoryview(data)[position:end])
        dirty[file] = None
        producer.requests += 1
        written += 1
        position = end
    producer.rest = data[position:]
    return written


if __name__ == "__main__":
    main()
