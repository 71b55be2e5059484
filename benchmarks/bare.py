"""The bare loops: what is left when a broker does nothing but move bytes. Run as ``python -m benchmarks.bare``.

Each prints its port and serves until it is killed. Blocking sockets; requests are found by their length. Of what is
written a CRC-32C is made, as a broker must; else it is not looked into: no parsing, no checks, no index.
"""

import argparse
import os
import select
import socket
from typing import Final

from seglog_protocol.checksum import crc32c

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
        ("syncs", "receive from many, write, one fdatasync, answer"),
        ("relay", "hand on what the first connection sends to the second, writing it too"),
    ):
        loops.add_parser(name, help=help_text).add_argument("path")
    sendfile = loops.add_parser("sendfile", help="answer every request with the next chunk of each file")
    sendfile.add_argument("--chunk", type=int, required=True)
    sendfile.add_argument("paths", nargs="+")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    if options.loop in {"writes", "syncs"}:
        write_from_many(listener, options.path, sync=options.loop == "syncs")
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
        for piece in pieces:
            crc32c(piece)
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


def write_from_many(listener: socket.socket, path: str, *, sync: bool) -> None:
    """One writev a read, to one file, and with ``sync`` one fdatasync for all that has arrived; then the answers."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    writers: dict[int, tuple[socket.socket, _Writer]] = {}
    with select.epoll() as poll:
        poll.register(listener.fileno(), select.EPOLLIN)
        while True:
            answers: list[tuple[socket.socket, int]] = []
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
                    answers.append((connection, ended))
            if sync and answers:
                os.fdatasync(file)
            for connection, ended in answers:
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


if __name__ == "__main__":
    main()
