"""The consumer in a group, of the async faces: its partitions are those that the group assigns to it.

The program's own task joins, commits and calls the program back, whenever it asks for records. A task of the client
sends heartbeats meanwhile, and interrupts a loop over records when there is something else to do. Both use one
connection, beside that of the fetches.
"""

from collections.abc import Mapping, Sequence

from seglog.asynchronous.consumer import Consumer
from seglog.asynchronous.link import Dialer, Link
from seglog.asynchronous.loop import Running
from seglog.core.committed_offsets import Committed, look_up_committed
from seglog.core.connection import Reply
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask
from seglog.core.group_session import CLOSE_SECONDS, GroupConsumerBase, GroupSession
from seglog.core.transactions import OpenTransaction, TransactionCore


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

    async def _asked(self, question: Ask, connect_seconds: float, seconds: float) -> Reply:
        async with self._coordinator_dialing:
            link = self._coordinator
            if link is None or link.failure is not None:
                if self._is_closed:
                    raise self._closed()
                link = self._coordinator = await self._dialer.dial(connect_seconds)
                if self._is_closed:
                    link.close()
        return await link.ask(question.request, question.payload, seconds=seconds)

    def _begin_watching(self) -> None:
        if self._watching is None:
            self._watching = self.loop.start(self._watch, f"seglog group {self.options.group}")

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
