"""The blocking queue: jobs of a share group for any number of threads.

Two daemon threads ask the broker, over one connection: one fetches, one keeps membership and locks while the program
works. The program's threads take jobs from memory, and leave there what became of them.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from seglog.core.connection import Reply
from seglog.core.conversations import Ask
from seglog.core.errors import seconds_of
from seglog.core.queue_jobs import Job
from seglog.core.queue_session import CLOSE_SECONDS, QueueOptions, QueueSession, Rest, Steps
from seglog.core.signals import stopped_by_signals
from seglog.core.wrong_face import refuse_async, refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess
from seglog_protocol.errors import ClientClosedError, ClientTimeoutError, SeglogError


class Queue:
    """Jobs of topics, each for one member of the group. Made by ``Client.queue``; threads may share it."""

    def __init__(self, dialer: Dialer, link: Link, options: QueueOptions, *, timeout: float) -> None:
        topics = link.converse(options.begin(), timeout=timeout)
        self._session = QueueSession(self, options, topics, time.monotonic)
        self._dialer = dialer.bound_to(link)
        self._link = link
        self._owner = OwnerProcess("queue")
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards the session
        self._changed = threading.Condition(self._lock)
        self._told = 0  # of the session's changes
        self._loops = 0  # over jobs, that are under way
        self._sending = threading.Lock()  # requests are sent in the order in which they are made
        for steps in (self._session.fetching(), self._session.tending()):
            arguments = steps, timeout, options.reconnect_timeout
            name = f"seglog queue {options.group}"
            threading.Thread(target=self._run, args=arguments, name=name, daemon=True).start()

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Job]:
        """Jobs as they come, without an end but ``stop``. Raises what ``get`` raises.

        A job that no block was entered with, and that nothing was said of, is released when the loop goes on. Leaving
        the loop releases what it has not come to.
        """
        with self._lock:
            self._loops += 1
        try:
            while (job := self.get()) is not None:
                yield job
                with self._lock:
                    self._session.pass_over(job)
        finally:
            with self._lock:
                self._loops -= 1
                if not self._loops:
                    self._session.put_back()
                self._tell()

    def get(self, timeout: float | None = None) -> Job | None:
        """The next job; None after ``timeout`` seconds without one, or after ``stop``.

        Raises NotReachableError when the broker is away for ``reconnect_timeout`` seconds, GroupError where the group
        cannot be a queue, AuthorizationError, ClientClosedError.
        """
        self._owner.check()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            job = self._session.take() or self._wait_for_job(deadline)
            self._tell()
            return job

    def _wait_for_job(self, deadline: float) -> Job | None:
        self._session.wait(1)
        try:
            while (job := self._session.take()) is None and not self._session.is_stopping:
                self._tell()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
            return job
        finally:
            self._session.wait(-1)

    def work(self, handler: Callable[[Job], object], *, at_once: int = 1) -> None:
        """Call ``handler`` with each job, in ``at_once`` threads, until ``stop``.

        A job is accepted when its call returns, and released when it raises, which is logged. In the main thread
        SIGTERM and SIGINT stop it, too: what is being done is finished first. Raises what ``get`` raises.
        """
        failures: list[BaseException] = []

        def loop() -> None:
            try:
                for job in self:
                    with job:
                        handler(job)
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)
                self.stop()

        threads = [threading.Thread(target=loop, name=f"seglog worker {number}") for number in range(at_once)]
        with stopped_by_signals(lambda: threading.Thread(target=self.stop).start()):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """Hand out no more jobs: loops and ``work`` end when those in hand are done."""
        with self._lock:
            self._session.stop()
            self._tell()

    # --- What became of them ------------------------------------------------------------------------------------------

    def settle(self, job: Job, word: int) -> None:
        """Say what became of a job, as its own methods do."""
        self._owner.check()
        with self._lock:
            self._session.settle(job, word)
            self._tell()

    def flush(self) -> None:
        """Return when the broker has what was said of jobs so far on its disk.

        Raises JobLost if anything does not count that was said since the last call.
        """
        self._owner.check()
        with self._lock:
            jobs = self._session.hurry()
            self._tell()
            while not all(job.is_told for job in jobs):
                self._changed.wait()
            self._session.raise_lost()

    def _tell(self) -> None:
        """Wake who waits for a change, if there was one. The lock is held."""
        if self._told != self._session.changes:
            self._told = self._session.changes
            self._changed.notify_all()

    # --- Lanes --------------------------------------------------------------------------------------------------------

    def _run(self, steps: Steps, timeout: float, patience: float) -> None:
        """Run a lane to its end; ``patience`` are the seconds for another connection."""
        answer: Reply | SeglogError | None = None
        while True:
            sent: Link | SeglogError | None = None
            arrived: list[Reply] = []
            with self._sending:
                with self._lock:
                    try:
                        step = steps.throw(answer) if isinstance(answer, SeglogError) else steps.send(answer)
                    except StopIteration:
                        return
                    finally:
                        self._tell()
                    seen, answer = self._told, None
                if isinstance(step, Ask):
                    sent = self._send(step, arrived, timeout, patience)
            if isinstance(step, Rest):
                with self._lock:
                    if seen == self._session.changes:
                        self._changed.wait(max(0.0, step.seconds))
            else:
                answer = self._answer(sent, arrived, timeout) if isinstance(sent, Link) else sent

    def _send(self, step: Ask, arrived: list[Reply], timeout: float, patience: float) -> Link | SeglogError:
        try:
            if not self._link.is_usable():
                self._link.close()
                self._link = self._dialer.dial(patience, self._sleep)
                self._sleep(0)
            self._link.send(step.request, step.payload, on_reply=arrived.append, timeout=timeout)
        except SeglogError as error:
            return error
        return self._link

    def _answer(self, link: Link, arrived: list[Reply], timeout: float) -> Reply | SeglogError:
        try:
            if link.wait(lambda: bool(arrived), timeout):
                return arrived[0]
        except SeglogError as error:
            return error
        return ClientTimeoutError(f"{link.server} did not answer within {seconds_of(timeout)}")

    def _sleep(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ClientClosedError("the queue is closed")

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the jobs that are held, send what was said of others, leave the group. Idempotent.

        May be called while other threads wait for jobs, which ends their loops.
        """
        if self._owner.is_here and not self._closing.is_set():
            self._closing.set()
            self._run(self._session.closing(), CLOSE_SECONDS, 0.0)
        self.abort_now()

    def abort_now(self) -> None:
        """Close without a word: the broker releases what is held."""
        if self._owner.is_here:
            self._closing.set()
            with self._lock:
                self._session.stop()
                self._session.fail(ClientClosedError("the queue is closed"))
                self._tell()
        self._link.close()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuse_async_block
        __aiter__ = refuse_async

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
