"""The queue of the async faces: jobs of a share group for any number of tasks.

Two tasks of the client ask the broker, over one connection: one fetches, one keeps membership and locks while the
program works. The program's tasks take jobs from memory, and leave there what became of them.
"""

import math
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from seglog.asynchronous.link import Dialer, Link
from seglog.core.connection import Reply
from seglog.core.conversations import Ask, converse_async
from seglog.core.queue_jobs import Job
from seglog.core.queue_session import CLOSE_SECONDS, QueueOptions, QueueSession, Rest, Steps
from seglog.core.signals import stopped_by_signals
from seglog.core.wrong_face import refuse_with
from seglog_protocol.errors import ClientClosedError


class Queue:
    """Jobs of topics, each for one member of the group. Made by ``Client.queue``; tasks may share it."""

    def __init__(
        self, dialer: Dialer, link: Link, options: QueueOptions, topics: dict[bytes, str], *, seconds: float
    ) -> None:
        self.loop = dialer.loop
        self.on_closed: Callable[[], None] = lambda: None
        self._session = QueueSession(self, options, topics, self.loop.now)
        self._dialer = dialer.bound_to(link)
        self._link = link
        self._dialing = self.loop.lock()
        self._seconds = seconds
        self._patience = options.reconnect_timeout
        self._is_closed = False
        self._changed = self.loop.event()
        self._told = 0  # of the session's changes
        lanes = self._session.fetching(), self._session.tending()
        self._lanes = [self.loop.start(partial(self._run, lane), f"seglog queue {options.group}") for lane in lanes]

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "Jobs":
        """Jobs as they come, as a loop over ``seglog.Queue`` gives them.

        What it has not come to when it is left is released within half the time that a lock holds.
        """
        return Jobs(self, self._session)

    async def get(self, timeout: float | None = None) -> Job | None:  # noqa: ASYNC109 - as the blocking one; it returns
        """The next job, as ``seglog.Queue.get``. A cancelled call loses none."""
        await self.loop.turn()
        job = self._session.take()
        if job is None:
            self._session.wait(1)
            try:
                with self.loop.until(math.inf if timeout is None else self.loop.now() + timeout):
                    while (job := self._session.take()) is None and not self._session.is_stopping:
                        self._tell()
                        await self._changed.wait()
            finally:
                self._session.wait(-1)
        self._tell()
        return job

    async def work(self, handler: Callable[[Job], Any], *, at_once: int = 1) -> None:
        """Await ``handler`` with each job, in ``at_once`` tasks, until ``stop``, as ``seglog.Queue.work``."""
        failures: list[Exception] = []

        async def loop() -> None:
            try:
                async for job in self:
                    with job:
                        handled = handler(job)
                        if isawaitable(handled):
                            await handled
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
                self.stop()

        with stopped_by_signals(lambda: self.loop.soon(self.stop)):
            await self.loop.together([loop] * at_once)
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """Hand out no more jobs: loops and ``work`` end when those in hand are done."""
        self._session.stop()
        self._tell()

    # --- What became of them ------------------------------------------------------------------------------------------

    def settle(self, job: Job, word: int) -> None:
        """Say what became of a job, as its own methods do."""
        self._session.settle(job, word)
        self._tell()

    async def flush(self) -> None:
        """Return when the broker has what was said of jobs so far on its disk, as ``seglog.Queue.flush``."""
        await self.loop.turn()
        jobs = self._session.hurry()
        self._tell()
        while not all(job.is_told for job in jobs):
            await self._changed.wait()
        self._session.raise_lost()

    def _tell(self) -> None:
        """Wake who waits for a change, if there was one."""
        if self._told != self._session.changes:
            self._told = self._session.changes
            changed, self._changed = self._changed, self.loop.event()
            changed.set()

    # --- Lanes --------------------------------------------------------------------------------------------------------

    async def _run(self, steps: Steps) -> None:
        """Run a lane to its end."""
        try:
            await converse_async(steps, self._do, self.loop.sleep)
        finally:
            self._tell()

    async def _do(self, step: Ask | Rest) -> Reply | None:
        self._tell()
        if isinstance(step, Rest):
            with self.loop.until(self.loop.now() + step.seconds):
                await self._changed.wait()
            return None
        async with self._dialing:
            if self._link.failure is not None:
                if self._is_closed:
                    raise ClientClosedError("the queue is closed")
                self._link = await self._dialer.dial(self._patience)
            link = self._link
        return await link.ask(step.request, step.payload, seconds=self._seconds)

    # --- Ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release the jobs that are held, send what was said of others, leave the group. Idempotent.

        A cancelled call does the same, for 10 seconds at most.
        """
        await self.leave()
        await self.loop.turn()

    async def leave(self) -> None:
        """``close`` without a checkpoint, also where it is cancelled."""
        is_first, self._is_closed = not self._is_closed, True
        self._seconds = CLOSE_SECONDS
        try:
            if is_first and self._link.failure is None:
                deadline = self.loop.now() + 2 * CLOSE_SECONDS
                await self.loop.shielded(deadline, lambda: self._run(self._session.closing()))
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close without a word: the broker releases what is held."""
        self._is_closed = True
        self._session.stop()
        self._session.fail(ClientClosedError("the queue is closed"))
        for lane in self._lanes:
            lane.cancel()
        self._link.close()
        self._tell()
        self.on_closed()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __iter__ = refuse_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Jobs:
    """The async iterator over jobs: no async generator, which a caller that leaves early would have to close."""

    def __init__(self, queue: Queue, session: QueueSession) -> None:
        self._queue = queue
        self._session = session
        self._last: Job | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        if self._last is not None:
            self._session.pass_over(self._last)
        self._last = await self._queue.get()
        if self._last is None:
            raise StopAsyncIteration
        return self._last
