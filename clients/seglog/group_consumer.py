"""The blocking consumer in a group: its partitions are those that the group assigns to it.

The program's own thread joins, commits and calls the program back, whenever it asks for records. A daemon thread sends
heartbeats meanwhile, and interrupts a loop over records when there is something else to do. Both use one connection,
beside that of the fetches.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from seglog.consumer import Consumer
from seglog.core.committed_offsets import Committed, look_up_committed
from seglog.core.connection import Reply
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask, ResultT, at_once
from seglog.core.group_session import GroupConsumerBase, GroupSession, Steps
from seglog.core.transactions import OpenTransaction, TransactionCore
from seglog.link import Dialer, Link
from seglog_protocol.errors import ClientClosedError


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
        self._leaver: int | None = None
        """The thread that closes it, whose last words nothing ends."""

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
        at_once(self._run(self._session.committing(offsets, metadata)))

    def committed(self, partitions: Sequence[int] | None = None) -> dict[int, Committed]:
        """The committed offsets of these partitions (None: all); partitions without one are left out."""
        self._owner.check()
        self._check_open()
        return at_once(self._run(look_up_committed(self.options.group, self.topic, partitions)))

    def commit_in_transaction(
        self, core: TransactionCore, transaction: OpenTransaction, offsets: Mapping[int, int] | Mapping[str, int] | None
    ) -> dict[int, int]:
        """As ``Transaction.commit_offsets``, which calls this; returns the offsets."""
        self._owner.check()
        self._check_open()
        return at_once(self._run(self._session.in_transaction(core, transaction, offsets)))

    def rewind(self) -> None:
        """Go on with the records after the committed offsets: those read since are read again.

        For a program whose transaction was aborted. A loop over the records that goes on comes to them.
        ``on_assigned`` is called again.
        """
        self._owner.check()
        with self._turning:
            self._session.rewind()

    def _check_leaving(self) -> None:
        self._sleep(0)

    def _sleep(self, seconds: float) -> None:
        """Sleep; the thread that closes is not woken by that."""
        if threading.get_ident() == self._leaver:
            time.sleep(seconds)
        else:
            super()._sleep(seconds)

    async def _run(self, steps: Steps[ResultT]) -> ResultT:
        with self._turning:
            return await super()._run(steps)

    async def _asked(self, question: Ask, connect_seconds: float, seconds: float) -> Reply:
        with self._coordinator_dialing:
            self._sleep(0)
            link = self._coordinator
            if link is not None and not link.is_usable():
                link.close()
                link = self._coordinator = None
            if link is None:
                link = self._coordinator = self._dialer.dial(connect_seconds, self._sleep)
        return link.ask(question.request, question.payload, timeout=seconds, sleep=self._sleep)

    def _begin_watching(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._watch_alone, name=f"seglog group {self.options.group}", daemon=True
            )
            self._watcher.start()

    def _watch_alone(self) -> None:
        """The thread that keeps the membership alive while the program works."""
        with suppress(ClientClosedError):
            at_once(self._watch())

    def close(self) -> None:
        """Commit what the program has processed, leave the group, and close the connections. Idempotent.

        ``on_revoked`` is called by the thread that closes. May be called while another thread waits for records.
        """
        if self._owner.is_here:
            self._is_interrupted = True
            self._closing.set()
            with self._turning:
                is_first, self._is_leaving, self._leaver = not self._is_leaving, True, threading.get_ident()
                try:
                    if is_first and self._watcher is not None:
                        at_once(self._run(self._session.closing()))
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
