"""Watches the free space of the disk: a full disk is a state that begins and ends by itself.

Meanwhile appends are refused (``storage.io.free_space``). This task logs when the state begins and ends; removes the
ballast; has waiting deletions done at once; disconnects readers that keep removed files open; and has files that found
no room written when there is some. It makes the ballast and the spare files, and makes them again.
"""

from typing import Final, Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.pending_deletions import PendingDeletions
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.free_space import FreeSpace, Room, SpaceLevel
from seglog_broker.storage.io.os_errors import why

log = structlog.get_logger()

LOOK_SECONDS: Final = 5.0
"""Time between two measurements. Appends near a mark measure for themselves, so that none goes past it meanwhile."""

LOOK_SECONDS_LOW: Final = 1.0
"""The same while little space is free, or a file found no room, so that freed space is used soon."""

BALLAST_SECONDS_MAX: Final = 3.0
"""The longest time from a start until the ballast is made."""

BALLAST_RETRY_SECONDS: Final = 60.0
"""Time until a ballast that could not be made is tried again."""


class Services(Protocol):
    """What this task uses of the broker."""

    checkpoints: CheckpointWriter
    deletions: PendingDeletions
    directory: LogDirectory
    offload: Offload
    transfers: Transfers

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...

    async def record_deletions(self) -> None:
        """Write deletions of topics to the registry, for which the disk had no room."""
        ...


async def run_free_space(broker: Services) -> None:
    """Measure the free space every few seconds, and act on it."""
    space = broker.directory.space
    logged = SpaceLevel.ENOUGH
    tried: Room | None = None  # the free space with which unwritten files last found no room
    # Soon, because a full disk needs it; but not at once, because a start has more urgent writes.
    next_ballast = trio.current_time() + min(BALLAST_SECONDS_MAX, broker.config.log_initial_task_delay_ms / 1000)
    next_spares = next_ballast
    while True:
        try:
            space.update(*await broker.offload.maintenance(space.measure))
        except OSError as error:
            log.warning("free_space_unknown", path=space.path, reason=why(error))
        if space.level is not logged:
            logged = space.level
            _log_level(space)
        if space.is_short:
            broker.deletions.hasten()
        if broker.directory.topics.unrecorded:
            await broker.record_deletions()
        tried = await _write_unwritten(broker, tried)
        if space.is_full:
            await _make_room(broker)
        else:
            broker.transfers.forgive()
            is_due = space.lacks_ballast and trio.current_time() >= next_ballast
            if is_due and not await _make_ballast(broker):
                next_ballast = trio.current_time() + BALLAST_RETRY_SECONDS
        if space.lacks_spares and trio.current_time() >= next_spares:
            await _make_spares(broker)
            next_spares = trio.current_time() + BALLAST_RETRY_SECONDS
        is_calm = space.level is SpaceLevel.ENOUGH and not broker.checkpoints.has_unwritten
        look = LOOK_SECONDS if is_calm else LOOK_SECONDS_LOW
        ballast_due = next_ballast - trio.current_time()
        await trio.sleep(min(look, ballast_due) if space.lacks_ballast and ballast_due > 0 else look)


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


async def _write_unwritten(broker: Services, tried: Room | None) -> Room | None:
    """Write files that found no room, if more space is free than ``tried``. Returns ``tried`` for the next call."""
    if not broker.checkpoints.has_unwritten:
        return None
    space = broker.directory.space
    room = Room(space.free, space.inodes)
    if tried is not None and room.free <= tried.free and room.inodes_free <= tried.inodes_free:
        return room.minimum(tried)
    await broker.checkpoints.retry()
    return room


async def _make_room(broker: Services) -> None:
    space = broker.directory.space
    if space.ballast:
        try:
            await broker.offload.maintenance(space.give_up_ballast)
            log.warning("ballast_removed", bytes=space.marks.ballast)
        except OSError as error:
            log.warning("ballast_not_removed", reason=why(error))
    cut = broker.transfers.cut_removed()
    if cut:
        log.warning("readers_cut", connections=cut, reason="they kept removed files open while the disk was full")


async def _make_ballast(broker: Services) -> bool:
    space = broker.directory.space
    try:
        await broker.offload.maintenance(space.make_ballast)
    except OSError as error:
        log.warning("ballast_not_made", reason=why(error), retry_seconds=BALLAST_RETRY_SECONDS)
        return False
    log.info("ballast_made", bytes=space.ballast)
    return True


async def _make_spares(broker: Services) -> None:
    try:
        await broker.offload.maintenance(broker.directory.space.make_spares)
    except OSError as error:
        log.warning("spare_files_not_made", reason=why(error), retry_seconds=BALLAST_RETRY_SECONDS)
