"""The blocking consumer in a group: its partitions are those that the group assigns to it.

The program's own thread joins, commits and calls the program back, whenever it asks for records. A daemon thread sends
heartbeats meanwhile, and interrupts a loop over records when there is something else to do. Both use one connection,
beside that of the fetches.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from seglog.consumer import Consumer
from seglog.core.committed_offsets import Committed, look_up_committed
from seglog.core.connection import Reply
from seglog.core.consumer import PendingFetch
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask, ResultT, StepT, converse
from seglog.core.group_session import CLOSE_SECONDS, SLICE_SECONDS, GroupConsumerBase, GroupSession, Notify, Pause
from seglog.core.records import FetchedBatch
from seglog.core.retries import Retries
from seglog.core.transactions import OpenTransaction, TransactionCore
from seglog.link import Dialer, Link
from seglog_protocol.errors import ClientClosedError, OffsetOutOfRangeError


class GroupConsumer(GroupConsumerBase, Consumer):
    """A member of a group, which shares the partitions of a topic with the other members.

    Made by ``Client.consumer`` with ``group``. It joins when records are first asked for. As with any consumer: one
    thread at a time, another one may close it.
    """

    def __init__(self, dialer: Dialer, link: Link, topic: str, options: GroupOptions, *, timeout: float) -> None:
        super().__init__(dialer, link, topic, options, timeout=timeout)
        self._fetcher.partition_count = None
        self._session = GroupSession(topic, options, time.monotonic, lambda: self._fetcher.states, self._replace_states)
        self._coordinator: Link | None = None
        self._coordinator_dialing = threading.Lock()
        self._turning = threading.RLock()  # while the program's thread joins or commits, it is not closed
        self._watcher: threading.Thread | None = None
        self._is_leaving = False
        """Whether it is being closed: each request may take ``CLOSE_SECONDS`` at most."""

    def _next_batch(self) -> FetchedBatch | None:
        self._owner.check()
        self._session.enter()
        try:
            return self._next_batch_of_group()
        finally:
            self._session.is_inside = False

    def _next_batch_of_group(self) -> FetchedBatch | None:
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            self._sleep(0)
            self._is_interrupted = self._is_closed
            if self._session.is_turn_due():
                self._run(self._session.turn())
            try:
                batch = self._queued()
            except OffsetOutOfRangeError as error:
                target = self._run(self._session.restart(error))
                self._fetcher.skip_to(self._fetcher.states[error.partition], target, error)
                continue
            if batch is not None or self._session.is_finished or is_last:
                return batch
            if self._fetcher.states:
                self._fetch_or_reconnect(retries)
            else:
                self._sleep(max(0.0, min(SLICE_SECONDS, self._wait_until - time.monotonic())))
            is_last = time.monotonic() >= self._wait_until

    def _is_answered(self, link: Link, asked: PendingFetch) -> bool:
        now = time.monotonic()
        until = min(asked.deadline, self._wait_until, now + SLICE_SECONDS)
        return link.wait(lambda: asked.reply is not None, until - now) or now >= asked.deadline

    def commit(
        self, offsets: Mapping[int, int] | Mapping[str, int] | None = None, *, metadata: str | None = None
    ) -> None:
        """Commit the positions of all partitions, or ``{partition: offset}``; in the log and durable when it returns.

        An offset is that of the record to be read next. Positions are committed forwards only; given offsets as they
        are. ``metadata`` is a text that ``committed`` gives back. Raises a GroupError when partitions may have been
        given to others meanwhile (UnknownMemberError, IllegalGenerationError, RebalanceInProgressError): what was to be
        committed may be read again, and iteration goes on with what the group assigns. FencedInstanceError when another
        consumer took this one's place; ValueError for a partition that this consumer does not read.
        """
        self._owner.check()
        self._check_open()
        self._run(self._session.committing(offsets, metadata))

    def committed(self, partitions: Sequence[int] | None = None) -> dict[int, Committed]:
        """The committed offsets of these partitions (None: all); partitions without one are left out."""
        self._owner.check()
        self._check_open()
        return self._run(look_up_committed(self.options.group, self.topic, partitions))

    def commit_in_transaction(
        self, core: TransactionCore, transaction: OpenTransaction, offsets: Mapping[int, int] | Mapping[str, int] | None
    ) -> dict[int, int]:
        """As ``Transaction.commit_offsets``, which calls this; returns the offsets."""
        self._owner.check()
        self._check_open()
        return self._run(self._session.in_transaction(core, transaction, offsets))

    def rewind(self) -> None:
        """Go on with the records after the committed offsets: those read since are read again.

        For a program whose transaction was aborted. A loop over the records that goes on comes to them.
        ``on_assigned`` is called again.
        """
        self._owner.check()
        with self._turning:
            self._session.rewind()

    def _run(self, steps: Generator[StepT, Any, ResultT]) -> ResultT:
        """Run ``steps`` to their end."""
        with self._turning:
            return converse(steps, self._do, self._pause)

    def _pause(self, seconds: float) -> None:
        (time.sleep if self._is_leaving else self._sleep)(seconds)

    def _do(self, step: object) -> Reply | None:
        if isinstance(step, Notify):
            self._session.tell(step)
            return None
        if isinstance(step, Pause):
            self._pause(step.seconds)
            return None
        assert isinstance(step, Ask)
        is_last = self._is_leaving
        if self._watcher is None and not is_last:
            self._watcher = threading.Thread(target=self._watch, name=f"seglog group {self.options.group}", daemon=True)
            self._watcher.start()
        timeout = CLOSE_SECONDS if is_last else self._session.answer_seconds(step.request, self._timeout)
        connect_timeout = 0.0 if is_last else self.options.reconnect_timeout
        return self._asked(step, timeout=timeout, connect_timeout=connect_timeout, sleep=self._pause)

    def _asked(self, question: Ask, *, timeout: float, connect_timeout: float, sleep: Callable[[float], None]) -> Reply:
        """Ask over a link that is opened again after it broke; ``sleep`` may raise to end the wait."""
        with self._coordinator_dialing:
            sleep(0)
            link = self._coordinator
            if link is not None and not link.is_usable():
                link.close()
                link = self._coordinator = None
            if link is None:
                link = self._coordinator = self._dialer.dial(connect_timeout, sleep)
        return link.ask(question.request, question.payload, timeout=timeout, sleep=sleep)

    def _watch(self) -> None:
        """The thread that keeps the membership alive while the program works."""
        with suppress(ClientClosedError):
            converse(self._session.watching(self._interrupt_if_due), self._watched, self._sleep)

    def _watched(self, step: object) -> Reply | None:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        assert isinstance(step, Ask)
        patience = min(self._timeout, self.options.session_timeout)
        return self._asked(step, timeout=self._timeout, connect_timeout=patience, sleep=self._sleep)

    def close(self) -> None:
        """Commit what the program has processed, leave the group, and close the connections. Idempotent.

        ``on_revoked`` is called by the thread that closes. May be called while another thread waits for records.
        """
        if self._owner.is_here:
            self._is_interrupted = True
            self._closing.set()
            with self._turning:
                is_first, self._is_leaving = not self._is_leaving, True
                try:
                    if is_first and self._watcher is not None:
                        self._run(self._session.closing())
                finally:
                    self.abort_now()
        else:
            self.abort_now()

    def abort_now(self) -> None:
        """Close without a commit, and without leaving the group."""
        super().close()
        link, self._coordinator = self._coordinator, None
        if link is not None:
            link.close()
