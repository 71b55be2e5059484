"""Room on the disk, watched: a full disk is a mode that begins and ends by itself.

While it lasts appends are refused (``storage.free_space``). This task says when it begins and ends, gives up the
ballast and makes it again, has what waits to be removed removed at once, cuts off readers that keep removed files from
giving their room back, and has what could not be written written when there is room.
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
"""Between two looks. Appends look for themselves when they come near the mark, so none goes past it meanwhile."""

LOOK_SECONDS_LOW: Final = 1.0
"""The same while there is little room, or was too little for something: what was freed is to be used soon."""

BALLAST_SECONDS_MAX: Final = 3.0
"""After a start, until the ballast is made."""

BALLAST_RETRY_SECONDS: Final = 60.0
"""After which a ballast that could not be made is tried again."""


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
        """Write down deletions of topics that the disk had no room for."""
        ...


async def run_free_space(broker: Services) -> None:
    """Look at the disk every few seconds, without end."""
    space = broker.directory.space
    told = SpaceLevel.ENOUGH
    tried: Room | None = None  # with at most so much room what could not be written was tried again, in vain
    # Soon, for it is needed when the disk fills up; but a start has better things to do.
    next_ballast = trio.current_time() + min(BALLAST_SECONDS_MAX, broker.config.log_initial_task_delay_ms / 1000)
    while True:
        try:
            space.note(*await broker.offload.maintenance(space.ask))
        except OSError as error:
            log.warning("free_space_unknown", path=space.path, reason=why(error))
        if space.level is not told:
            told = space.level
            _tell(space)
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
        is_calm = space.level is SpaceLevel.ENOUGH and not broker.checkpoints.has_unwritten
        look = LOOK_SECONDS if is_calm else LOOK_SECONDS_LOW
        ballast_due = next_ballast - trio.current_time()
        await trio.sleep(min(look, ballast_due) if space.lacks_ballast and ballast_due > 0 else look)


def _tell(space: FreeSpace) -> None:
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
    """Try again what could not be written if there is more room than at ``tried``; what to give to the next call."""
    if not broker.checkpoints.has_unwritten:
        return None
    space = broker.directory.space
    room = Room(space.free, space.inodes)
    if tried is not None and room.free <= tried.free and room.inodes_free <= tried.inodes_free:
        return room.least(tried)
    await broker.checkpoints.retry()
    return room


async def _make_room(broker: Services) -> None:
    space = broker.directory.space
    if space.ballast:
        try:
            await broker.offload.maintenance(space.give_up_ballast)
            log.warning("ballast_given_up", bytes=space.marks.ballast)
        except OSError as error:
            log.warning("ballast_kept", reason=why(error))
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
