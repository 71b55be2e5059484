"""Watches over what the broker needs: space on the disk, its directory, open files, and certificates of TLS.

A full disk is a state that begins and ends by itself. Meanwhile appends are refused (``storage.io.free_space``).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.pending_deletions import PendingDeletions
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.security.tls import ServerTls
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.free_space import FreeSpace, Room, SpaceLevel
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import LogDirectoryError

log = get_logger()

SPACE_SECONDS: Final = 5.0
"""Time between two measurements. Appends near a mark measure for themselves, so that none goes past it meanwhile."""

SPACE_SECONDS_LOW: Final = 1.0
"""The same while little space is free, or a file found no room, so that freed space is used soon."""

BALLAST_SECONDS_MAX: Final = 3.0
"""The longest time from a start until the ballast is made."""

BALLAST_RETRY_SECONDS: Final = 60.0
"""Time until a ballast that could not be made is tried again."""

DIRECTORY_SECONDS: Final = 2.0
"""Time between two checks that the log directory is in place."""

IDLE_WRITERS_SECONDS: Final = 0.5
"""Time between two checks of the limit of open files."""


@dataclass(eq=False, repr=False)
class FreeSpaceWatch(Service):
    """The task that measures free space: logs when a full disk begins and ends, and acts on it.

    On a full disk it removes the ballast, has waiting deletions done at once, and disconnects readers that keep removed
    files open. Files that found no room are written when there is some. It makes the ballast and the spare files.
    """

    checkpoints: CheckpointWriter
    deletions: PendingDeletions
    record_deletions: Callable[[], Awaitable[None]]  # of topics, for which the registry had no room
    transfers: Transfers

    def __post_init__(self) -> None:
        self._problems = Lasting()  # by what is made or measured

    async def run(self) -> None:
        """Measure the free space every few seconds, and act on it."""
        space = self._directory.space
        logged = SpaceLevel.ENOUGH
        tried: Room | None = None  # the free space with which unwritten files last found no room
        # Soon, because a full disk needs it; but not at once, because a start has more urgent writes.
        delay = min(BALLAST_SECONDS_MAX, self._config.current.log_initial_task_delay_ms / 1000)
        next_ballast = next_spares = trio.current_time() + delay
        while True:
            try:
                space.update(*await self._offload.maintenance(space.measure))
            except OSError as error:
                if self._problems.begins("space", why(error)):
                    log.warning("free_space_unknown", path=space.path, reason=why(error))
            else:
                if self._problems.ends("space"):
                    log.info("free_space_known", path=space.path)
            if space.level is not logged:
                logged = space.level
                _log_level(space)
            if space.is_short:
                self.deletions.hasten()
            if self._directory.topics.unrecorded:
                await self.record_deletions()
            tried = await self._write_unwritten(tried)
            if space.is_full:
                await self._make_room()
            else:
                self.transfers.forgive()
                is_due = space.lacks_ballast and trio.current_time() >= next_ballast
                if is_due and not await self._make_ballast():
                    next_ballast = trio.current_time() + BALLAST_RETRY_SECONDS
            if space.lacks_spares and trio.current_time() >= next_spares:
                await self._make_spares()
                next_spares = trio.current_time() + BALLAST_RETRY_SECONDS
            is_calm = space.level is SpaceLevel.ENOUGH and not self.checkpoints.has_unwritten
            look = SPACE_SECONDS if is_calm else SPACE_SECONDS_LOW
            ballast_due = next_ballast - trio.current_time()
            await trio.sleep(min(look, ballast_due) if space.lacks_ballast and ballast_due > 0 else look)

    async def _write_unwritten(self, tried: Room | None) -> Room | None:
        """Write files that found no room, if more space is free than ``tried``; return that of the last attempt."""
        if not self.checkpoints.has_unwritten:
            return None
        space = self._directory.space
        room = Room(space.free, space.inodes)
        if tried is not None and room.free <= tried.free and room.inodes_free <= tried.inodes_free:
            return room.minimum(tried)
        await self.checkpoints.retry()
        return room

    async def _make_room(self) -> None:
        space = self._directory.space
        if space.ballast:
            try:
                await self._offload.maintenance(space.give_up_ballast)
                self._problems.ends("removal")
                log.warning("ballast_removed", bytes=space.marks.ballast)
            except OSError as error:
                if self._problems.begins("removal", why(error)):
                    log.warning("ballast_not_removed", reason=why(error))
        cut = self.transfers.cut_removed()
        if cut:
            log.warning("readers_cut", connections=cut, reason="they kept removed files open while the disk was full")

    async def _make_ballast(self) -> bool:
        space = self._directory.space
        try:
            await self._offload.maintenance(space.make_ballast)
        except OSError as error:
            if self._problems.begins("ballast", why(error)):
                log.warning("ballast_not_made", reason=why(error), retry_seconds=BALLAST_RETRY_SECONDS)
            return False
        self._problems.ends("ballast")
        log.info("ballast_made", bytes=space.ballast)
        return True

    async def _make_spares(self) -> None:
        try:
            await self._offload.maintenance(self._directory.space.make_spares)
        except OSError as error:
            if self._problems.begins("spares", why(error)):
                log.warning("spare_files_not_made", reason=why(error), retry_seconds=BALLAST_RETRY_SECONDS)
        else:
            if self._problems.ends("spares"):
                log.info("spare_files_made")


def _log_level(space: FreeSpace) -> None:
    facts = {"path": space.path, "free_bytes": space.free, "soft": space.marks.soft, "hard": space.marks.hard}
    if space.inodes is not None:
        facts["free_inodes"] = space.inodes.free
    if space.is_full:
        log.error("disk_full", consequence="nothing is appended, reading and deleting go on", **facts)
    elif space.level is SpaceLevel.LOW:
        log.warning("disk_filling_up", **facts)
    else:
        log.info("disk_has_room", **facts)


async def run_directory_watch(lock: DirectoryLock, path: str) -> None:
    """Check that the log directory at ``path`` was neither removed nor replaced.

    Writes to a removed file, and its fsyncs, still succeed. Each round of group commit checks for this itself, so that
    no ack of ``disk`` is wrong; this task stops the broker. Raises LogDirectoryError when the directory is gone.
    """
    while True:
        if not lock.is_in_place:
            raise LogDirectoryError(
                f"{path} was removed or replaced while the broker was running, so the broker has stopped: records "
                "that it wrote would be lost. Put the directory back, if you have it, and start the broker again",
                path=path,
            )
        await trio.sleep(DIRECTORY_SECONDS)


async def run_idle_writers(idle_writers: IdleWriters) -> None:
    """Keep the limit of open files: writers without recent appends are synced and closed while it is exceeded."""
    while True:
        await trio.sleep(IDLE_WRITERS_SECONDS)
        await idle_writers.keep_limit()


LOOK_SECONDS: Final = 86_400.0
"""Time between two looks, and so between two warnings."""


async def run_certificate_watch(tls: ServerTls | None, clock: Clock) -> None:
    """Log at the start, after each reload, and once a day, where a certificate has ended or ends soon."""
    if tls is None:
        await trio.sleep_forever()
    while True:
        now_ms = clock.now_ms()
        for certificate in tls.certificates:
            problem = certificate.problem(now_ms)
            if problem is not None:
                tell = log.warning if certificate.is_valid(now_ms) else log.error
                tell("certificate_problem", problem=problem)
        with trio.move_on_after(LOOK_SECONDS):
            await tls.replaced()
