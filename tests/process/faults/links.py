"""A port in front of another one of this machine, which sees what passes, and may cut it."""

import socket
import threading
from contextlib import suppress


class Link:
    """Passes each connection on to the port ``behind``; subclasses look at what passes."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def passing(self, connection: int, data: bytes, *, is_reply: bool) -> bytes:
        """Return what is to be passed on of what comes in a connection, by its number; less than all cuts it."""
        raise NotImplementedError

    def _accept(self) -> None:
        number = 0
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.behind))
                except OSError:
                    near.close()
                    raise
                threading.Thread(target=self._connect, args=(number, near, far), daemon=True).start()
                number += 1

    def _connect(self, number: int, near: socket.socket, far: socket.socket) -> None:
        """Pass on what both sides say until both have ended."""
        with near, far:
            back = threading.Thread(target=self._pass_on, args=(number, far, near, True), daemon=True)
            back.start()
            self._pass_on(number, near, far, is_reply=False)
            back.join()

    def _pass_on(self, connection: int, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                passed = self.passing(connection, data, is_reply=is_reply)
                target.sendall(passed)
                if len(passed) < len(data):
                    source.shutdown(socket.SHUT_RDWR)
                    target.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
