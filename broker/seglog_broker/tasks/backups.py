"""The continuous backup: runs the process that makes it, and answers what that asks. See ``backup.agent_messages``.

The process reads the files and sends them; the broker tells it moments of itself, and nothing else. One that has died
is started again, after a pause that grows; it then gets everything anew, and finds in the place what is there already.
"""

import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Final

import trio

from seglog_broker.backup import agent_messages as lines
from seglog_broker.logger import get_logger
from seglog_broker.partitions.backup_progress import BackupProgress
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.fence import Fence
from seglog_broker.storage.directory.identity import decode_properties
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.os_errors import why
from seglog_broker.workers.messages import WorkerError
from seglog_broker.workers.pool import Process as Agent
from seglog_broker.workers.pool import scratch_file

COMMAND: Final = (sys.executable, "-P", "-m", "seglog_broker.backup.agent")

PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
"""Before a process that has died is started again: twice as long each time, until one has published something."""

log = get_logger()


async def start_agent(stderr: IO[bytes]) -> Agent:
    """Start the process that makes the backup. Raises OSError."""
    return await Agent.start("process", COMMAND, stderr)


@dataclass(eq=False, repr=False)
class Backups(Service):
    """The task; nothing of it runs without a ``progress``."""

    progress: BackupProgress | None
    start: Callable[[IO[bytes]], Awaitable[Agent]] = start_agent

    def __post_init__(self) -> None:
        self._sending = trio.Lock()
        self._has_published = False
        self._incarnation = uuid.uuid4().hex

    async def run(self) -> None:
        """Have the backup made until cancelled, or until the broker stops and the last cut is published."""
        if self.progress is None:
            return
        progress, pause = self.progress, PAUSE_SECONDS
        progress.has_ended = trio.Event()
        log.info("backup_started", place=progress.place, lag_ms=progress.lag_ms, lease=progress.fence is not None)
        try:
            while not (progress.stop_wanted.is_set() or progress.is_lease_lost):
                self._has_published = False
                progress.begin()
                try:
                    ended = await self._serve_one(progress)
                except OSError as error:
                    ended = f"it could not be started: {why(error)}"
                if progress.stop_wanted.is_set() or progress.is_lease_lost:
                    return
                pause = PAUSE_SECONDS if self._has_published else pause
                progress.reason = f"the process that makes it has died, and is started again: {ended}"
                log.error("backup_process_died", reason=ended, again_in_seconds=pause)
                with trio.move_on_after(pause):
                    await progress.stop_wanted.wait()
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            progress.has_ended.set()

    async def _serve_one(self, progress: BackupProgress) -> str:
        """Serve a process until it ends; how it has ended."""
        with scratch_file() as stderr:
            agent, ended = await self.start(stderr), ""
            try:
                async with trio.open_nursery() as nursery:
                    await self._send(agent, await self._begin())
                    nursery.start_soon(self._tell_of_stop, progress, agent)
                    try:
                        while True:
                            self._take(nursery, progress, agent, lines.from_agent(await agent.next_line()))
                    except WorkerError as error:
                        ended = error.message
                    except ValueError as error:
                        ended = f"it says what is not understood: {error}"
                    nursery.cancel_scope.cancel()
            finally:
                await agent.end()
        return ended

    async def _begin(self) -> lines.Begin:
        config = self._config.current
        identity = await self._offload.maintenance(
            read_file, self._fs, f"{self._directory.path}/{filenames.META_PROPERTIES_FILE}"
        )
        return lines.Begin(
            self._directory.path,
            config.seglog_backup_to,
            config.seglog_backup_key_file,
            config.seglog_backup_bytes_per_second,
            config.seglog_backup_lag_ms,
            config.seglog_backup_keep_ms,
            config.seglog_backup_lease_ms,
            self._directory.cluster_id,
            decode_properties(identity).get("directory.id", ""),
            self._incarnation,
        )

    def _take(self, nursery: trio.Nursery, progress: BackupProgress, agent: Agent, message: lines.FromAgent) -> None:
        """Take what the process says; an answer that takes time is given beside."""
        match message:
            case lines.CutWanted():
                nursery.start_soon(self._answer_with_cut, progress, agent, message.is_whole)
            case lines.ChangesWanted():
                changes = lines.Changes(progress.cuts.replaced())
                nursery.start_soon(self._send, agent, changes)
            case lines.Published():
                if not self._has_published:  # a first copy takes long: now the place has everything
                    log.info("backup_published", place=progress.place, id=message.id, bytes=message.written)
                self._has_published = True
                progress.note_published(message.number, message.id, message.written)
            case lines.Trouble():
                self._note_trouble(progress, message.reason)
                if message.is_final and message.reason is not None and progress.fence is not None:
                    progress.fence.end(message.reason)
            case _ if progress.fence is not None:
                self._take_of_lease(progress.fence, message)

    @staticmethod
    def _take_of_lease(fence: Fence, message: lines.FromAgent) -> None:
        """Take what the process says of the lease."""
        match message:
            case lines.LeaseHeld():
                fence.hold(message.until_ns)
            case lines.LeaseAwaited():
                fence.wait_for(message.reason)
            case lines.LeaseLost():
                fence.end(message.reason)

    async def _answer_with_cut(self, progress: BackupProgress, agent: Agent, is_whole: bool) -> None:
        moment = await progress.cuts.cut(is_whole=is_whole)
        progress.note_cut(moment)
        async with self._sending, aclosing(progress.cuts.pieces(moment)) as pieces:
            async for piece in pieces:
                await agent.send(piece)

    async def _send(self, agent: Agent, message: lines.ToAgent) -> None:
        async with self._sending:
            await agent.send(lines.line_of(message))

    async def _tell_of_stop(self, progress: BackupProgress, agent: Agent) -> None:
        await progress.stop_wanted.wait()
        await self._send(agent, lines.Stop())

    @staticmethod
    def _note_trouble(progress: BackupProgress, reason: str | None) -> None:
        """Log when a trouble begins, and when it ends."""
        if reason is None and progress.reason is not None:
            log.info("backup_goes_on", place=progress.place)
        elif reason is not None and progress.reason is None:
            log.error("backup_held_up", place=progress.place, reason=reason)
        progress.reason = reason
