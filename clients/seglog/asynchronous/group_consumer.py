"""The consumer in a group, of the async faces: its partitions are those that the group assigns to it.

The program's own task joins, commits and calls the program back, whenever it asks for records. A task of the client
sends heartbeats meanwhile, and interrupts a loop over records when there is something else to do. Both use one
connection, beside that of the fetches.
"""

from collections.abc import Generator, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from seglog.asynchronous.consumer import Consumer
from seglog.asynchronous.link import Answer, Dialer, Link
from seglog.asynchronous.loop import Running
from seglog.core.committed_offsets import Committed, look_up_committed
from seglog.core.connection import Reply
from seglog.core.consumer import PendingFetch
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask, ResultT, StepT, converse_async
from seglog.core.group_session import CLOSE_SECONDS, SLICE_SECONDS, GroupConsumerBase, GroupSession, Notify, Pause
from seglog.core.records import FetchedBatch
from seglog.core.retries import Retries
from seglog.core.transactions import OpenTransaction, TransactionCore
from seglog_protocol.errors import OffsetOutOfRangeError


class GroupConsumer(GroupConsumerBase, Consumer):
    """A member of a group, which shares the partitions of a topic with the other members.

    Made by ``Client.consumer`` with ``group``. It joins when records are first asked for. Callbacks may be async.
    """

    def __init__(self, dialer: Dialer, link: Link, topic: str, options: GroupOptions, *, seconds: float) -> None:
        super().__init__(dialer, link, topic, options, [], seconds=seconds)
        self._fetcher.partition_count = None
        self._session = GroupSession(topic, options, self.loop.now, lambda: self._fetcher.states, self._replace_states)
        self._coordinator: Link | None = None
        self._coordinator_dialing = self.loop.lock()
        self._watching: Running | None = None
        self._is_leaving = False
        """Whether it is being closed: each request may take ``CLOSE_SECONDS`` at most."""

    async def _next_batch(self) -> FetchedBatch | None:
        self._session.enter()
        try:
            return await self._next_batch_of_group()
        finally:
            self._session.is_inside = False

    async def _next_batch_of_group(self) -> FetchedBatch | None:
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            if self._is_leaving:
                raise self._closed()
            self._is_interrupted = False
            if self._session.is_turn_due():
                await self._run(self._session.turn())
            try:
                batch = self._queued()
            except OffsetOutOfRangeError as error:
                target = await self._run(self._session.restart(error))
                self._fetcher.skip_to(self._fetcher.states[error.partition], target, error)
                continue
            if batch is not None or self._session.is_finished or is_last:
                return batch
            if self._fetcher.states:
                await self._fetch_or_reconnect(retries)
            else:
                await self.loop.sleep(max(0.0, min(SLICE_SECONDS, self._wait_until - self.loop.now())))
            is_last = self.loop.now() >= self._wait_until

    async def _is_answered(self, answer: Answer, asked: PendingFetch) -> bool:
        deadline = min(asked.deadline, self._wait_until, self.loop.now() + SLICE_SECONDS)
        return await answer.wait(deadline) or self.loop.now() >= asked.deadline

    async def commit(
        self, offsets: Mapping[int, int] | Mapping[str, int] | None = None, *, metadata: str | None = None
    ) -> None:
        """Commit positions, durable when it returns, as ``seglog.GroupConsumer.commit``."""
        await self.loop.turn()
        self._check_open()
        await self._run(self._session.committing(offsets, metadata))

    async def committed(self, partitions: Sequence[int] | None = None) -> dict[int, Committed]:
        """The committed offsets of the group, as ``seglog.GroupConsumer.committed``."""
        await self.loop.turn()
        self._check_open()
        return await self._run(look_up_committed(self.options.group, self.topic, partitions))

    async def commit_in_transaction(
        self, core: TransactionCore, transaction: OpenTransaction, offsets: Mapping[int, int] | Mapping[str, int] | None
    ) -> dict[int, int]:
        """As ``Transaction.commit_offsets``, which calls this; returns the offsets."""
        await self.loop.turn()
        self._check_open()
        return await self._run(self._session.in_transaction(core, transaction, offsets))

    def rewind(self) -> None:
        """Go on with the records after the committed offsets, as ``seglog.GroupConsumer.rewind``."""
        self._session.rewind()

    async def _run(self, steps: Generator[StepT, Any, ResultT]) -> ResultT:
        """Run ``steps`` to their end."""
        return await converse_async(steps, self._do, self.loop.sleep)

    async def _do(self, step: object) -> Reply | None:
        if isinstance(step, Notify):
            called = self._session.tell(step)
            if isawaitable(called):
                await called
            return None
        if isinstance(step, Pause):
            await self.loop.sleep(step.seconds)
            return None
        assert isinstance(step, Ask)
        if self._watching is None and not self._is_leaving:
            self._watching = self.loop.start(self._watch, f"seglog group {self.options.group}")
        if self._is_leaving:
            return await self._asked(step, connect_seconds=0.0, seconds=CLOSE_SECONDS)
        seconds = self._session.answer_seconds(step.request, self._seconds)
        return await self._asked(step, connect_seconds=self.options.reconnect_timeout, seconds=seconds)

    async def _asked(self, question: Ask, *, connect_seconds: float, seconds: float) -> Reply:
        async with self._coordinator_dialing:
            link = self._coordinator
            if link is None or link.failure is not None:
                if self._is_closed:
                    raise self._closed()
                link = self._coordinator = await self._dialer.dial(connect_seconds)
                if self._is_closed:
                    link.close()
        return await link.ask(question.request, question.payload, seconds=seconds)

    async def _watch(self) -> None:
        """The task that keeps the membership alive while the program works."""
        await converse_async(self._session.watching(self._interrupt_if_due), self._watched, self.loop.sleep)

    async def _watched(self, step: object) -> Reply | None:
        if isinstance(step, Pause):
            await self.loop.sleep(step.seconds)
            return None
        assert isinstance(step, Ask)
        patience = min(self._seconds, self.options.session_timeout)
        return await self._asked(step, connect_seconds=patience, seconds=self._seconds)

    async def close(self) -> None:
        """Commit what the program has processed, leave the group, and close the connections. Idempotent.

        ``on_revoked`` is called by the task that closes. A cancelled call does the same, for 10 seconds at most.
        """
        await self.leave()
        await self.loop.turn()

    async def leave(self) -> None:
        """``close`` without a checkpoint, for at most a few seconds, also where it is cancelled."""
        is_first, self._is_leaving, self._is_interrupted = not self._is_leaving, True, True
        try:
            if is_first and self._watching is not None:
                self._watching.cancel()
                deadline = self.loop.now() + 2 * CLOSE_SECONDS
                await self.loop.shielded(deadline, lambda: self._run(self._session.closing()))
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the connections, without leaving the group."""
        super().let_go()
        if self._watching is not None:
            self._watching.cancel()
        link, self._coordinator = self._coordinator, None
        if link is not None:
            link.close()

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
