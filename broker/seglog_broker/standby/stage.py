"""The stage of a process in which it follows a place, shows how far it is, and is promoted.

A role is a stage of the process. In the first one ``backup/promoting.py`` works in a thread, pages of HTTP tell its
state, and no other port is open. The second one is ``serve``. The socket in the log directory is there in both.

A line is sent to that socket, ``{"want": "status"}`` or ``{"want": "promote", "without_lease": false}``, and one comes
back: ``stage``, standby or serving; ``sentence``, how far it is; ``said``, a sentence for each step of the promotion
that was asked for last; and ``refused``, why it follows on instead, or empty. Who has asked looks again until it ends.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
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
_SAID_MAX: Final = 100
"""Sentences that are told; further ones, of a place that comes and goes, are in the log."""

Serve = Callable[[Callable[[], object]], Awaitable[None]]
"""Serves, and calls what it is given when it is ready."""

log = get_logger()


class _Request(msgspec.Struct):
    want: Literal["status", "promote"]
    without_lease: bool = False


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
        self._said: list[str] = []
        self._refused = ""

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
                self._refused = str(error)
                continue
            except (BackupError, DestinationError, OSError) as error:
                trouble = why(error) if isinstance(error, OSError) else str(error)
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
        if trouble != self.standby.status.trouble:
            self.standby.status.trouble = trouble
            if trouble is None:
                log.info("standby_follows", place=self._place)
            else:
                log.warning("standby_held_up", place=self._place, reason=trouble)
                self._tell(f"it goes on when it can: {trouble}")
        self._manager.status(self._sentence())

    def _say(self, sentence: str) -> None:
        log.info("promotion_step", done=sentence)
        self._manager.status(f"Being promoted: {sentence}")
        self._tell(sentence)

    def _tell(self, sentence: str) -> None:
        if len(self._said) < _SAID_MAX:
            self._said.append(sentence)

    def _sentence(self) -> str:
        status = self.standby.status
        if self._is_serving:
            return f"{self._config.log_dir} serves"
        has = f"has the state of {moment_text(status.applied)}" if status.applied else "has no state yet"
        behind = f", {status.lag_ms / 1000:.1f} s behind the newest one there" if status.lag_ms else ""
        held = f"; held up: {status.trouble}" if status.trouble else ""
        return f"standby of {self._place}: {has}{behind}, {size_text(status.received)} received{held}"

    # --- The socket

    def note_serving(self) -> None:
        """It serves: whoever has asked for that is told."""
        self._is_serving = True

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
                    request = msgspec.json.decode(await _line(stream), type=_Request)
                    if request.want == "promote" and not self._is_serving:
                        self._begin(request)
                    await stream.send_all(msgspec.json.encode(self._state()) + b"\n")
            except (trio.BrokenResourceError, trio.TooSlowError, msgspec.MsgspecError):
                return  # it has ended, or is no client of ours

    def _begin(self, request: _Request) -> None:
        if self._without_lease is None:
            log.info("promotion_begun", without_lease=request.without_lease)
            self._said, self._refused = [], ""
        self._without_lease = request.without_lease
        self._asked.set()

    def _state(self) -> dict[str, str | list[str]]:
        return {
            "stage": "serving" if self._is_serving else "standby",
            "sentence": self._sentence(),
            "said": self._said,
            "refused": self._refused,
        }

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


async def _line(stream: trio.SocketStream) -> bytes:
    """The line that a client sends, or as much as may come."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX and (data := await stream.receive_some()):
        line += data
    return line
