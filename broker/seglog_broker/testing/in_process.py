"""A whole broker inside a process that is not its own, on ports that the system chooses, with its clock and its log.

Nothing of the process changes: not structlog's configuration, nor signal handlers, limits, the garbage collector or
standard output. Everything of the broker runs on its loop: it has no further threads and no worker processes.
"""

import os
import socket
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.transport import address_of
from seglog_broker.logger import logging_to
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.server import Serving, serve
from seglog_broker.storage.io.clock import Clock, SystemClock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.testing.offload import InlineOffload


class MovableClock(Clock):
    """The machine's wall clock, moved by ``ahead_ms``; 0 at first."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._system = SystemClock()

    def now_ms(self) -> int:
        """See Clock."""
        return self._system.now_ms() + self.ahead_ms


class MovableLoopClock(trio.abc.Clock):
    """A clock for ``trio.run``: the machine's, moved by ``ahead_seconds``, so that what is due by then runs at once."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def start_clock(self) -> None:
        """See trio."""

    def current_time(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic() + self.ahead_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Real seconds until ``deadline``."""
        return deadline - self.current_time()


LINES_MAX: Final = 10_000
"""Lines that are kept; of more, the newest."""


class KeptLog:
    """A structlog logger, and the lines that went to it."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)
        self.logger: Any = structlog.wrap_logger(
            None,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                self._keep,
            ],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
            context_class=dict,
            cache_logger_on_first_use=False,
        )

    def _keep(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        self._events.append(dict(event))
        raise structlog.DropEvent

    def lines(self) -> list[dict[str, Any]]:
        """The newest ``LINES_MAX`` lines: each an event and its facts."""
        return list(self._events)


SETTLE_SECONDS_MAX: Final = 2.0
"""How long ``settle`` waits at most for a loop that never comes to rest, because clients keep it busy."""

STOPPED: Final = "the broker has stopped"
NOT_RUNNING: Final = "the broker is not running: start() starts it"


class BrokerStoppedError(RuntimeError):
    """The broker is not running: it was not started, was stopped or crashed, or belongs to another process."""


class SlowOffload(InlineOffload):
    """Syncs take some seconds longer; 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        self._changed = trio.Event()

    def slow_down(self, seconds: float) -> None:
        """Take ``seconds`` longer from now on. What has waited for another time goes on at once."""
        self._seconds = seconds
        self._changed.set()
        self._changed = trio.Event()

    async def _wait(self) -> None:
        with trio.move_on_after(self._seconds):
            await self._changed.wait()

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        """See Offload."""
        await self._wait()
        return await super().commit(fs, flushes)

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await self._wait()
        return await super().fsync(fn, *args)


class BrokerThread:
    """Runs of a broker, one after the other, with one clock and one log. Methods are for other threads than its own."""

    def __init__(self) -> None:
        self._clock = MovableClock()
        self._log = KeptLog()
        self.now_ms = self._clock.now_ms
        """The broker's time, which a jump has moved."""
        self.lines = self._log.lines
        """The log so far: each line an event and its facts."""
        self._thread: threading.Thread | None = None
        self._serving: Serving | None = None
        self._failure: BaseException | None = None

    @property
    def serving(self) -> Serving:
        """What serves. Raises BrokerStoppedError."""
        if self._serving is None or self._ended.is_set():
            raise BrokerStoppedError(NOT_RUNNING)
        return self._serving

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._serving is not None and not self._ended.is_set()

    def run(self, config: BrokerConfig, fs: FileSystem, faults: Faults) -> Serving:
        """Start the broker, and return when it is ready. Raises LogDirectoryError, ListenError."""
        self._serving = self._failure = None
        self._ended = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._loop_clock = MovableLoopClock()
        self._offload = SlowOffload()
        started: Future[Serving] = Future()
        serving = partial(serve, config, fs=fs, clock=self._clock, offload=self._offload, faults=faults)
        self._thread = threading.Thread(target=self._run, args=(started, serving), name="seglog broker", daemon=True)
        self._thread.start()
        try:
            self._serving = started.result()
        except BaseException:  # it failed, or the caller was interrupted
            self.stop()
            raise
        _running.add(self)
        return self._serving

    def stop(self) -> None:
        """Stop the broker in order, and wait for the end of its thread.

        Raises what the broker failed with while it ran.
        """
        if self._thread is None:
            return
        while self._token is None and not self._ended.wait(0.001):  # interrupted before its loop ran
            pass
        if self._token is not None:
            self._on_loop_soon(self._cancel)
        self._ended.wait()
        self._thread.join()
        _running.discard(self)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _cancel(self) -> None:
        self._offload.slow_down(0)  # a stop waits for syncs
        self._scope.cancel()

    def crash(self) -> None:
        """End as a process does that is killed: nothing is answered any more, and nothing more is written."""
        self.call(setattr, self.serving.broker, "is_crashing", True)
        self.stop()

    def call(self, fn: Callable[..., T], *args: Any) -> T:
        """What ``fn(*args)`` returns when it is called on the loop. Raises BrokerStoppedError."""
        called: Future[T] = Future()

        def call() -> None:
            try:
                called.set_result(fn(*args))
            except BaseException as error:  # noqa: BLE001 - the caller's
                called.set_exception(error)

        self.serving  # noqa: B018 - it raises
        ended = self._ended
        self._on_loop_soon(call)
        return _result(called, ended)

    def settle(self) -> None:
        """Return when the loop has nothing to do at the moment, or after SETTLE_SECONDS_MAX."""
        settled: Future[None] = Future()

        async def settle() -> None:
            import trio.testing  # noqa: PLC0415 - it imports pytest, where that is installed

            try:
                with trio.move_on_after(SETTLE_SECONDS_MAX):
                    await trio.testing.wait_all_tasks_blocked(0.002)
            finally:
                settled.set_result(None)

        ended = self._ended
        self.call(self._nursery.start_soon, settle)
        _result(settled, ended)

    def move_clock(self, seconds: float, *, wall_only: bool) -> None:
        """Move the wall clock, and by default the loop's with it: then what is due by then has been done on return."""

        def move() -> None:
            self._clock.ahead_ms += round(seconds * 1000)
            self._loop_clock.ahead_seconds += 0 if wall_only else seconds

        self.call(move)
        self.settle()

    def slow_disk(self, seconds: float) -> None:
        """Syncs take ``seconds`` longer, from now on; 0: no longer."""

        def slow_down() -> None:
            self._offload.slow_down(seconds)
            self.serving.broker.commits.may_wait_at = float("inf") if seconds else 0.0

        self.call(slow_down)

    # --- The thread ---------------------------------------------------------------------------------------------------

    def _run(self, started: "Future[Serving]", serving: Callable[..., Awaitable[None]]) -> None:
        try:
            with logging_to(self._log.logger):
                trio.run(self._main, started, serving, clock=self._loop_clock)
        except BaseException as error:  # noqa: BLE001 - of the one who starts or stops it
            if started.done():
                self._failure = _alone(error)
            else:
                started.set_exception(_alone(error))
        finally:
            self._ended.set()
            if not started.done():
                started.set_exception(BrokerStoppedError("the broker was stopped while it started"))

    async def _main(self, started: "Future[Serving]", serving: Callable[..., Awaitable[None]]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                started.set_result(await self._nursery.start(serving))

    def _on_loop_soon(self, fn: Callable[[], object]) -> None:
        token = self._token
        if token is None:  # another run begins
            raise BrokerStoppedError(STOPPED)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(fn)


def _result(future: "Future[T]", ended: threading.Event) -> T:
    while True:
        try:
            return future.result(timeout=0.2)
        except TimeoutError:
            if future.done():
                raise
            if ended.is_set():
                raise BrokerStoppedError(STOPPED) from None


_running: Final["weakref.WeakSet[BrokerThread]"] = weakref.WeakSet()


def _let_go_of_sockets() -> None:
    """In a forked child: let go of the sockets of brokers, which would else take connections when their broker is gone.

    Their descriptors lead nowhere then, but stay in use: objects of the parent still mean to close them.
    """
    serving = [broker.serving for broker in _running if broker.is_running]
    addresses = {each for those in serving for each in (*those.addresses, *those.kafka_addresses)}
    if not addresses:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    name = copy.getsockname()
                if isinstance(name, tuple) and address_of(name) in addresses:
                    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_let_go_of_sockets)


def _alone(error: BaseException) -> BaseException:
    """The error that a nursery wrapped, if it is the only one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
