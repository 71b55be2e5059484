"""Fetches awaited segments while the broker serves: worker processes get them from the backup it was started from.

One process goes through all of them, what was asked for first; a second one has only what is asked for, so that a
reader waits for no segment but its own. Both share ``seglog.backup.bytes.per.second``. Where the backup is away
they try again, and the broker has a problem until it is back.
"""

import math
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.logger import get_logger
from seglog_broker.partitions.awaited_segments import AwaitedSegments, Fetched
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.runtime.offload import FETCHERS_MAX, Offload
from seglog_broker.storage.directory.identity import is_to_begin
from seglog_broker.storage.directory.restored_from import RestoredFrom, read_restored_from
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.segment.awaited import discard_arrived, install_arrived
from seglog_broker.workers.fetch_jobs import BeginJob, FetchJob
from seglog_broker.workers.jobs import BEGIN, FETCH
from seglog_broker.workers.messages import WorkerError
from seglog_broker.workers.pool import Workers
from seglog_protocol.errors import LogDirectoryError, StorageError

PROGRESS_SECONDS: Final = 10.0
"""Between two lines of progress while a log directory is begun."""

RETRY_SECONDS: Final = 2.0
"""Between two tries while the backup gives nothing."""

log = get_logger()


class Beginning(NamedTuple):
    """The wishes of ``seglogd --from``: where from, until which moment (ms), and whether the place is taken over."""

    place: str
    until_ms: int | None
    takes_over: bool


async def begin_from_backup(config: BrokerConfig, fs: FileSystem, offload: Offload, wanted: Beginning) -> None:
    """Make the log directory, if it is empty or not there, of a backup: all that is needed to serve.

    Raises LogDirectoryError where that fails; a start on what is left begins again.
    """
    path, place = config.log_dir, _absolute(wanted.place)
    if not is_to_begin(fs, path):
        log.info("backup_not_used", place=place, reason=f"{path} is a log directory already, and is served")
        return
    if not wanted.takes_over and place == _absolute(config.seglog_backup_to):
        raise LogDirectoryError(
            f"{path} was not begun from {place}: seglog.backup.to names that, too, and it belongs to the lost "
            "directory. If that one never serves again add --take-over, else let seglog.backup.to name another place",
            path=path,
        )
    began = logged_at = trio.current_time()
    done = 0

    def progress(size: int) -> None:
        nonlocal done, logged_at
        done += size
        if trio.current_time() - logged_at >= PROGRESS_SECONDS:
            logged_at = trio.current_time()
            log.info("restore_progress", bytes=done)

    log.info("restore_started", place=place)
    job = BeginJob(
        *(place, _absolute(config.seglog_backup_key_file), config.seglog_backup_bytes_per_second, path),
        *(wanted.until_ms, wanted.takes_over, filenames.new_id(uuid.uuid4())),
    )
    async with offload.fetcher(fs, ()) as fetcher:
        try:
            begun = await fetcher.run(BEGIN, job, progress=progress)
        except (OSError, WorkerError) as error:
            reason = error.message if isinstance(error, WorkerError) else why(error)
            raise LogDirectoryError(f"{path} was not begun from {place}: {reason}", path=path) from error
    log.info(
        "restored",
        id=begun.id,
        bytes=begun.size,
        awaited=begun.awaited,
        awaited_bytes=begun.awaited_size,
        seconds=round(trio.current_time() - began, 3),
    )


def _absolute(place: str) -> str:
    return str(Path(place).absolute()) if place and "://" not in place else place


@dataclass(eq=False, repr=False)
class Awaiting(Service):
    """Fetches the segments of one broker."""

    _problems: Lasting = field(default_factory=Lasting, init=False)

    @property
    def _awaited(self) -> AwaitedSegments:
        return self._table.awaited

    async def run(self) -> None:
        """Fetch whatever is awaited, until cancelled; partitions that are recovered first may come later."""
        while True:
            while self._awaited.is_done:
                await self._awaited.wait()
            await self._scheduler.learn_sizes(partition.log for partition in self._awaited.partitions)
            began = trio.current_time()
            log.info("segments_awaited", segments=len(self._awaited), bytes=self._awaited.bytes_left)
            descriptors = self._directory.lock.hold.descriptors
            async with self._offload.fetcher(self._fs, descriptors) as fetcher, trio.open_nursery() as nursery:
                nursery.start_soon(partial(self._fetch_many, fetcher, asked_only=False))
                nursery.start_soon(partial(self._fetch_many, fetcher, asked_only=True))
            log.info("segments_arrived", seconds=round(trio.current_time() - began, 3))

    async def _fetch_many(self, fetcher: Workers, *, asked_only: bool) -> None:
        """Fetch one segment after the other until none is awaited."""
        while not self._awaited.is_done:
            fetched = self._awaited.begin_next(asked_only=asked_only)
            if fetched is None:
                with trio.move_on_after(RETRY_SECONDS if self._awaited.failed else math.inf):
                    await self._awaited.wait()
                continue
            has_arrived = has_failed = False
            try:
                await self._fetch(fetcher, fetched)
                has_arrived = fetched.is_awaited  # else it was deleted meanwhile
            except (OSError, StorageError, WorkerError) as error:
                has_failed = True
                self._note_failed(fetched, error.message if isinstance(error, WorkerError) else why(error))
            finally:
                self._awaited.end(fetched, has_arrived=has_arrived)
            if has_failed:
                await trio.sleep(RETRY_SECONDS)
            elif not self._awaited.failed and self._problems.ends("backup"):
                log.info("segments_arrive_again")

    async def _fetch(self, fetcher: Workers, fetched: Fetched) -> None:
        origin = self._origin()
        partition, directory = fetched.partition, fetched.partition.log.directory
        rate = -(-self._config.current.seglog_backup_bytes_per_second // FETCHERS_MAX)
        await fetcher.run(FETCH, FetchJob(origin.place, origin.key_file, rate, directory, fetched.base_offset))
        async with partition.maintenance:  # no retention is renaming its files
            act = install_arrived if fetched.is_awaited else discard_arrived
            await self._offload.maintenance(act, self._fs, directory, fetched.base_offset)

    def _origin(self) -> RestoredFrom:
        try:
            return read_restored_from(self._fs, self._directory.path)
        except ValueError as error:
            raise StorageError(f"{self._directory.path}/{filenames.RESTORE_FILE} cannot be used: {error}") from error

    def _note_failed(self, fetched: Fetched, reason: str) -> None:
        if not fetched.is_awaited:
            return
        is_first = not self._awaited.failed
        self._awaited.note_failed(fetched, reason)
        if is_first and self._problems.begins("backup", reason):
            log.warning("segments_do_not_arrive", reason=reason, consequence="reads of them are told to try again")
