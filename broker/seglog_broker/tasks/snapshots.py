"""Snapshots of the log directory of a running broker, for backups, and the socket where `seglogd backup` asks for one.

Partitions are frozen one after the other, each in one turn of the loop, and linked in a thread while their maintenance
lock keeps compaction, retention and deletion from renaming their files. Committed offsets come first: so none in the
snapshot is beyond the end of its partition. In the end everything frozen is durable.

Where there are transactions, what was written to meanwhile is frozen again, in the same order, and the state of
transactions last, while no commit is decided: so each transaction in the snapshot is there as a whole, or known to be
open, and then aborted after a restore. Passes before that leave little to do while commits wait.

No client on the network can have the broker write anywhere by the socket: nothing is read from it, and the snapshot
lies in the log directory, until the connection ends. One snapshot at a time.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget, unix_sockets
from seglog_broker.storage.directory.snapshot import NoSnapshotError, SnapshotOffsets, SnapshotWriter, encode_answer
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filenames import partition_directory_name
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import PartitionReadOnlyError, SeglogError, StorageError, UnknownTopicError
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC, is_internal

LOOKED_AT_COST: Final = 2
"""Microseconds to see that a partition has not grown."""

PROBLEMS_MAX: Final = 100
"""Sentences about partitions in a snapshot."""

FEW: Final = 20
"""Partitions that may be frozen again while commits wait: a tenth of a second."""

PASSES_MAX: Final = 4
"""As often what was written to is frozen again before commits have to wait, even if that leaves more than FEW."""

log = get_logger()


@dataclass(slots=True)
class _Snapshot:
    """A snapshot in the making; ``frozen`` has the log end of each partition in it."""

    writer: SnapshotWriter
    topics: dict[str, Topic]
    frozen: dict[Partition, int] = field(default_factory=dict)
    offsets: SnapshotOffsets = field(default_factory=SnapshotOffsets)
    problems: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class SnapshotMaker(Service):
    """Makes snapshots of the directory of a broker."""

    _commits_held: Callable[[], AbstractAsyncContextManager[None]]

    def writer(self) -> SnapshotWriter:
        """That of a new snapshot, for ``make``; the caller removes it."""
        return SnapshotWriter(self._fs, self._directory.path)

    async def make(self, writer: SnapshotWriter) -> None:
        """Make a snapshot of everything that there is now. Raises NoSnapshotError, OSError."""
        began = trio.current_time()
        if len(self._recoveries):
            raise NoSnapshotError(
                f"{len(self._recoveries)} partitions are still being recovered: run the backup again when "
                "`seglog ping` says that the broker is ready"
            )
        made = _Snapshot(writer, dict(self._directory.registry.topics))
        await self._offload.maintenance(writer.begin)
        held_seconds = 0.0
        await self._freeze(made)
        if TRANSACTIONS_TOPIC in self._directory.registry.topics:
            passes = 1
            while await self._freeze(made) > FEW and passes < PASSES_MAX:
                passes += 1
            async with self._commits_held():
                held_since = trio.current_time()
                await self._freeze(made)
                held_seconds = trio.current_time() - held_since
        for partition, end in made.frozen.items():
            if partition.log.durable_end_offset < end and not partition.is_deleted:
                partition.want_durable()  # all of them in the next round
        for partition, end in made.frozen.items():
            await self._make_durable(made, partition, end)
        for name, topic in list(made.topics.items()):
            if self._is_gone(topic):
                for number in range(topic.partitions):
                    made.offsets.forget((name, number))
                    await self._offload.maintenance(made.writer.drop, partition_directory_name(name, number))
                del made.topics[name]
        registry = self._directory.registry
        await self._offload.maintenance(
            made.writer.finish, made.topics, registry, made.offsets, made.problems[:PROBLEMS_MAX]
        )
        log.info(
            "snapshot_made",
            name=made.writer.name,
            partitions=len(made.frozen),
            problems=len(made.problems),
            seconds=round(trio.current_time() - began, 3),
            commits_held_seconds=round(held_seconds, 3),
        )

    async def _freeze(self, made: _Snapshot) -> int:
        """Add what is not in the snapshot as it is now; how many partitions that was."""
        state = self._directory.registry.topics.get(TRANSACTIONS_TOPIC)
        if state is not None:
            made.topics[TRANSACTIONS_TOPIC] = state  # the first transaction may have begun meanwhile
        turns = budget.Turns(self._scheduler.turn)
        added = 0
        for topic in sorted(made.topics.values(), key=_place_of):
            for number in range(topic.partitions):
                await turns.spend(LOOKED_AT_COST)
                if self._is_gone(topic):
                    break
                partition = self._table.find(topic.name, number)
                if partition is None:
                    name = partition_directory_name(topic.name, number)
                    reason = self._directory.report.offline.get((topic.name, number), "it could not be opened")
                    problem = f"{name} is offline, its files are as they are: {reason}"
                    if problem not in made.problems:
                        made.problems.append(problem)
                        await self._offload.maintenance(made.writer.add_as_it_is, name)
                elif made.frozen.get(partition) != partition.log.log_end_offset:  # something was appended since
                    await self._add(made, partition)
                    added += 1
        return added

    def _is_gone(self, topic: Topic) -> bool:
        """Whether the topic was deleted meanwhile."""
        return self._directory.registry.topics.with_id(topic.id) is None

    async def _add(self, made: _Snapshot, partition: Partition) -> None:
        key = partition.topic, partition.number
        name = partition_directory_name(*key)
        async with partition.maintenance:
            if partition.is_deleted:
                return
            found = await self._scheduler.retry_after_cold_read(partition.log.freeze)
            made.offsets.add(key, found, first_dirty=partition.log.cleaning.first_dirty_offset)
            if partition in made.frozen:
                await self._offload.maintenance(made.writer.drop, name)
            await self._offload.maintenance(made.writer.add_log, found)
        made.frozen[partition] = found.log_end
        if not found.is_sound:
            made.problems.append(f"{name} is read-only because {partition.log.state.read_only}")

    async def _make_durable(self, made: _Snapshot, partition: Partition, end: int) -> None:
        if partition.log.state.read_only is not None:
            return  # known already, or found out by another fsync
        try:
            await wait_durable(partition, end)
        except UnknownTopicError:
            return  # deleted: it is left out
        except PartitionReadOnlyError:
            made.offsets.forget((partition.topic, partition.number))
            name = partition_directory_name(partition.topic, partition.number)
            made.problems.append(f"{name} is read-only because {partition.log.state.read_only}")
        except StorageError as error:
            raise NoSnapshotError(f"{error.message}, and then the backup") from error

    async def remove(self, writer: SnapshotWriter) -> None:
        """Remove a snapshot; where that fails the next start does it."""
        with trio.CancelScope(shield=True):
            try:
                await self._offload.maintenance(partial(self._directory.space.with_ballast, writer.remove))
            except OSError as error:
                log.warning("snapshot_not_removed", path=writer.path, reason=why(error), until="the next start")


def _place_of(topic: Topic) -> tuple[bool, bool, str]:
    """Committed offsets and what share groups acknowledged are frozen first, the state of transactions last."""
    return topic.name == TRANSACTIONS_TOPIC, not is_internal(topic.name), topic.name


LOOK_SECONDS: Final = 1.0
"""Time between two looks at the free space while a snapshot is copied."""

CONNECTIONS_MAX: Final = 8
"""At a time; all but one are told that there is a snapshot already."""

SEND_SECONDS: Final = 10.0
"""The longest time in which a peer takes a line."""


@dataclass(eq=False, repr=False)
class SnapshotSocket(Service):
    """The task that serves the socket."""

    _maker: SnapshotMaker

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
