"""The stage of a process in which it follows a place, shows how far it is, and is promoted.

A role is a stage of the process. In the first one ``backup/promoting.py`` works in a thread, pages of HTTP tell its
state, and no other port is open. The second one is ``serve``. The socket in the log directory is there in both.

A line is sent to that socket, ``{"want": "status"}`` or ``{"want": "promote", "without_lease": false}``. Lines come
back: ``{"said": ...}`` for each step, and last ``{"done": ...}`` or ``{"failed": ...}``, each with a sentence.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.promoting import NotPromotedError, Standby, moment_text
from seglog_broker.backup.store import BackupError
from seglog_broker.config import BrokerConfig, http_listener
from seglog_broker.listeners.acceptor import addresses_of, open_all_listeners
from seglog_broker.listeners.serving import http_places
from seglog_broker.logger import get_logger
from seglog_broker.runtime import unix_sockets
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_broker.security.tls import server_tls
from seglog_broker.standby.pages import page_of, serve_pages
from seglog_broker.storage.directory.identity import is_followed
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import prepare_directory
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.texts import size_text

LOOK_SECONDS_MIN: Final = 0.5
"""Between two looks at the place, which are half of seglog.backup.lag.ms otherwise."""

REQUEST_SECONDS: Final = 10.0
"""The longest time in which a line has to come, or is taken."""

_LINE_BYTES_MAX: Final = 1024
_LINES_MAX: Final = 100
"""Steps of a promotion that wait for one who does not read; further ones are left out."""

Serve = Callable[[Callable[[], object]], Awaitable[None]]
"""Serves, and calls what it is given when it is ready."""

log = get_logger()


async def stand_by(config: BrokerConfig, fs: FileSystem, manager: ServiceManager, serve: Serve) -> None:
    """Follow the place of ``config`` until the standby is promoted, then ``serve``; until cancelled.

    Raises LogDirectoryError, InvalidConfigError and ListenError where it cannot begin, and what ``serve`` raises.
    """
    if not (fs.exists(config.log_dir) and is_followed(fs, config.log_dir)):
        prepare_directory(fs, config.log_dir)
    lock = DirectoryLock(fs, config.log_dir)
    stage = StandbyStage(config, fs, manager)
    try:
        async with trio.open_nursery() as process:
            await process.start(stage.run_socket)
            async with trio.open_nursery() as following:
                await following.start(stage.run_pages)
                await stage.follow()
                following.cancel_scope.cancel()
            lock.release()
            await serve(stage.note_serving)
            process.cancel_scope.cancel()
    finally:
        stage.standby.is_stopped = True
        lock.release()


class StandbyStage:
    """The first stage, and the socket of both."""

    def __init__(self, config: BrokerConfig, fs: FileSystem, manager: ServiceManager) -> None:
        self.standby = Standby(fs, config)
        self._config = config
        self._place = config.seglog_backup_to
        self._fs = fs
        self._manager = manager
        self._without_lease: bool | None = None
        """None where no promotion is asked for."""
        self._asked = trio.Event()
        self._is_serving = False
        self._watching: set[trio.MemorySendChannel[dict[str, str]]] = set()
        self._told: str | None = ""  # of what holds it up; at first nothing is known

    # --- Following

    async def follow(self) -> None:
        """Follow until promoted. Raises LogDirectoryError."""
        log.info("standby_started", place=self._place, log_dir=self._config.log_dir)
        self._manager.ready(f"Standby of {self._place}")
        while True:
            trouble = None
            try:
                if await trio.to_thread.run_sync(self._step, abandon_on_cancel=True):
                    return
            except NotPromotedError as error:
                self._without_lease = None
                log.warning("promotion_refused", reason=str(error))
                self._tell({"failed": str(error)})
                continue
            except (BackupError, DestinationError, OSError) as error:
                trouble = why(error) if isinstance(error, OSError) else str(error)
                self._tell({"said": f"it goes on when it can: {trouble}"})
            self._note(trouble)
            with trio.move_on_after(max(LOOK_SECONDS_MIN, self._config.seglog_backup_lag_ms / 2000)):
                await self._asked.wait()
            self._asked = trio.Event()

    def _step(self) -> bool:
        """Take one step, in a thread; True when it was the last one."""
        if self.standby.serves_already():
            return True
        wanted = self._without_lease
        if wanted is None and not self.standby.is_promoting:
            self.standby.follow()
            return False
        self.standby.promote(lambda said: trio.from_thread.run_sync(self._say, said), without_lease=bool(wanted))
        return True

    def _note(self, trouble: str | None) -> None:
        self.standby.status.trouble = trouble
        if trouble != self._told:
            self._told = trouble
            if trouble is None:
                log.info("standby_follows", place=self._place)
            else:
                log.warning("standby_held_up", place=self._place, reason=trouble)
        self._manager.status(self._sentence())

    def _sentence(self) -> str:
        status = self.standby.status
        if self._is_serving:
            return f"{self._config.log_dir} serves already"
        has = f"has the state of {moment_text(status.applied)}" if status.applied else "has no state yet"
        behind = f", {status.lag_ms / 1000:.1f} s behind the newest one there" if status.lag_ms else ""
        held = f"; held up: {status.trouble}" if status.trouble else ""
        return f"standby of {self._place}: {has}{behind}, {size_text(status.received)} received{held}"

    # --- The socket

    def note_serving(self) -> None:
        """It serves: whoever has asked for that is told."""
        self._is_serving = True
        self._tell({"done": f"{self._config.log_dir} serves"})

    async def run_socket(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the socket until cancelled."""
        path = f"{self._config.log_dir}/{filenames.STANDBY_SOCKET}"
        listening = trio.SocketListener(trio.socket.from_stdlib_socket(unix_sockets.listen(path)))
        task_status.started()
        try:
            await trio.serve_listeners(self._answer, [listening])
        finally:
            if self._fs.exists(path):
                self._fs.unlink(path)

    async def _answer(self, stream: trio.SocketStream) -> None:
        if not unix_sockets.is_own_peer(stream.socket.getsockopt):
            await stream.aclose()
            return
        async with stream:
            try:
                with trio.fail_after(REQUEST_SECONDS):
                    request = await _request(stream)
                if request.get("want") == "promote":
                    await self._promote(stream, without_lease=request.get("without_lease") is True)
                else:
                    await _send(stream, {"done": self._sentence()})
            except (trio.BrokenResourceError, trio.TooSlowError, ValueError):
                return  # it has ended, or is no client of ours

    async def _promote(self, stream: trio.SocketStream, *, without_lease: bool) -> None:
        if self._is_serving:
            await _send(stream, {"done": self._sentence()})
            return
        sending, receiving = trio.open_memory_channel[dict[str, str]](_LINES_MAX)
        self._watching.add(sending)
        try:
            if self._without_lease is None:
                log.info("promotion_begun", without_lease=without_lease)
            self._without_lease = without_lease
            self._asked.set()
            async for line in receiving:
                await _send(stream, line)
                if "said" not in line:
                    return
        finally:
            self._watching.discard(sending)

    def _say(self, sentence: str) -> None:
        log.info("promotion_step", done=sentence)
        self._manager.status(f"Being promoted: {sentence}")
        self._tell({"said": sentence})

    def _tell(self, line: dict[str, str]) -> None:
        for watching in self._watching:
            try:
                watching.send_nowait(line)
            except trio.WouldBlock:
                if "said" not in line:
                    watching.close()  # it ends without the last line, and its client says so

    # --- Pages

    async def run_pages(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve pages where the configuration has an address for them, until cancelled."""
        http, tls = http_listener(self._config), server_tls(self._config)
        opened = await open_all_listeners(http_places(self._config))
        task_status.started()
        if http is None:
            return
        loaded = None if tls is None else tls.of(http)
        log.info("standby_pages", http=", ".join(addresses_of(opened[0])))
        await serve_pages(
            opened[0],
            lambda path: page_of(path, self.standby.status, self._sentence()),
            None if loaded is None else loaded.context,
        )


async def _request(stream: trio.SocketStream) -> dict[str, Any]:
    """The line that a client sends. Raises ValueError."""
    line = b""
    while not line.endswith(b"\n"):
        data = await stream.receive_some(_LINE_BYTES_MAX)
        line += data
        if not data or len(line) > _LINE_BYTES_MAX:
            raise ValueError("no line")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("no object")  # noqa: TRY004 - it is what was sent that is wrong
    return found


async def _send(stream: trio.SocketStream, line: dict[str, str]) -> None:
    with trio.fail_after(REQUEST_SECONDS):
        await stream.send_all(json.dumps(line).encode() + b"\n")
