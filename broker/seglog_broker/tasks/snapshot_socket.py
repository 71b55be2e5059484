"""Who runs ``seglogd backup`` on this machine asks here for a snapshot: by connecting to a socket in the log directory.

No client on the network can have the broker write anywhere by it: nothing is read from a connection, and the snapshot
lies in the log directory, until the connection ends. One snapshot at a time.
"""

from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.runtime import unix_sockets
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.snapshot import NoSnapshotError, encode_answer
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.tasks.snapshots import SnapshotMaker
from seglog_protocol.errors import SeglogError

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the free space while a snapshot is copied."""

CONNECTIONS_MAX: Final = 8
"""At a time; all but one are told that there is a snapshot already."""

SEND_SECONDS: Final = 10.0
"""The longest time in which a peer takes a line."""

log = get_logger()


@dataclass(eq=False)
class SnapshotSocket:
    """The task that serves the socket."""

    _maker: SnapshotMaker
    _directory: LogDirectory
    _fs: FileSystem

    def __post_init__(self) -> None:
        self._is_taken = False

    async def run(self) -> None:
        """Serve until cancelled; not at all on a file system of a test, which has no sockets."""
        if not isinstance(self._fs, PosixFileSystem):
            return
        path = f"{self._directory.path}/{filenames.BACKUP_SOCKET}"
        try:
            opened = unix_sockets.listen(path)
        except OSError as error:
            log.warning(
                "backup_socket_unavailable", path=path, reason=why(error), consequence="stop the broker for a backup"
            )
            return
        try:
            async with trio.open_nursery() as nursery:
                limiter = trio.Semaphore(CONNECTIONS_MAX)
                with trio.socket.from_stdlib_socket(opened) as listening:
                    while True:
                        await limiter.acquire()
                        try:
                            connection, _ = await listening.accept()
                        except OSError as error:
                            limiter.release()
                            log.warning("backup_socket_failed", reason=why(error))
                            await trio.sleep(LOOK_SECONDS)
                            continue
                        nursery.start_soon(self._serve, trio.SocketStream(connection), limiter)
        finally:
            if self._directory.lock.is_in_place:
                try:
                    self._fs.unlink(path)
                except OSError as error:
                    log.debug("backup_socket_left", path=path, reason=why(error))

    async def _serve(self, stream: trio.SocketStream, limiter: trio.Semaphore) -> None:
        try:
            async with stream:
                if not unix_sockets.is_own_peer(stream.socket.getsockopt):
                    return
                if self._is_taken:
                    await self._say(
                        stream,
                        encode_answer(error="another backup is being taken, or its snapshot removed: try again soon"),
                    )
                    return
                self._is_taken = True
                try:
                    await self._give(stream)
                finally:
                    self._is_taken = False
        except trio.BrokenResourceError:
            return  # the peer has ended
        finally:
            limiter.release()

    async def _give(self, stream: trio.SocketStream) -> None:
        writer = self._maker.writer()
        try:
            try:
                await self._maker.make(writer)
            except (NoSnapshotError, OSError, SeglogError) as error:
                log.warning("snapshot_failed", reason=why(error))
                await self._say(stream, encode_answer(error=why(error)))
                return
            await self._say(stream, encode_answer(snapshot=writer.name))
            while not await self._has_ended(stream):
                if self._directory.space.is_full:
                    log.warning("snapshot_given_up", name=writer.name, reason="the disk is full")
                    reason = "the broker's disk is full, and the snapshot would keep removed segments on it"
                    await self._say(stream, encode_answer(error=reason))
                    return
        finally:
            await self._maker.remove(writer)

    @staticmethod
    async def _has_ended(stream: trio.SocketStream) -> bool:
        """Whether the peer has closed the connection, within LOOK_SECONDS; what it sends is dropped."""
        with trio.move_on_after(LOOK_SECONDS):
            while await stream.receive_some(1024):
                pass
            return True
        return False

    @staticmethod
    async def _say(stream: trio.SocketStream, line: bytes) -> None:
        with trio.move_on_after(SEND_SECONDS):
            await stream.send_all(line)
