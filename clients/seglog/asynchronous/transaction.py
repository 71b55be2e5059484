"""Transactions of the async faces: producers of several topics, and offsets of groups, that count together."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from seglog.asynchronous.group_consumer import GroupConsumer
from seglog.asynchronous.link import Link
from seglog.asynchronous.loop import Loop
from seglog.asynchronous.producer import Delivery, Producer
from seglog.core.conversations import Conversation
from seglog.core.producer_options import Content, HeaderInput
from seglog.core.transactions import END_SECONDS, OpenTransaction, TransactionCore, check_in_group
from seglog.core.wrong_face import refuse_with
from seglog_protocol.errors import SeglogError, TransactionUnanswered

Converse = Callable[[Conversation[Any]], Awaitable[object]]
"""Runs a conversation with the broker."""


class Extend:
    """Makes partitions part of a transaction. Tasks that wait for one request share the next one."""

    def __init__(self, core: TransactionCore, converse: Converse, loop: Loop) -> None:
        self._core = core
        self._converse = converse
        self._asking = loop.lock()

    async def __call__(self, transaction: OpenTransaction, topic: str, partitions: list[int]) -> None:
        """Return when batches of these partitions may be sent.

        Raises TransactionFenced, ClientError if the transaction has ended, and the broker's errors.
        """
        if transaction.wants(topic, partitions):
            async with self._asking:
                await self._converse(self._core.extending(transaction, topic, partitions))


class Transaction:
    """The transactions of one transactional id, one after the other: each ``async with`` block is one.

    Made by ``Client.transaction``; as ``seglog.transaction.Transaction``. Any task may send; one begins and ends.
    """

    def __init__(
        self,
        core: TransactionCore,
        converse: Converse,
        make_producer: Callable[[str, OpenTransaction, Extend], Awaitable[Producer]],
        loop: Loop,
    ) -> None:
        """``make_producer`` as of ``seglog.transaction.Transaction``."""
        self._core = core
        self._converse = converse
        self._loop = loop
        self._make_producer = make_producer
        self.producers: dict[str, Producer] = {}
        """By topic. Whoever made this closes them when it is let go of."""
        self._extend = Extend(core, converse, loop)
        self._making = loop.lock()
        self._committed: list[tuple[GroupConsumer, dict[int, int]]] = []

    @property
    def transactional_id(self) -> str:
        """The id: of all that use it, the producer that began last is the one that counts."""
        return self._core.transactional_id

    async def send(
        self,
        topic: str,
        value: Content,
        key: Content = None,
        *,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        headers: HeaderInput = (),
    ) -> Delivery:
        """Send a record to a topic, as ``seglog.transaction.Transaction.send``."""
        transaction = self._core.open
        producer = self.producers.get(topic)
        if producer is None or producer.transaction is not transaction:
            producer = await self._producer(topic, transaction)
        return await producer.send(
            value, key, timestamp=timestamp, partition=partition, headers=headers, part_of=transaction
        )

    async def _producer(self, topic: str, transaction: OpenTransaction) -> Producer:
        async with self._making:
            transaction.check()
            producer = self.producers.get(topic)
            if producer is not None and producer.begin(transaction):
                return producer
            if producer is not None:  # an abort was interrupted before it came to this one
                self.producers.pop(topic, None)
                producer.abort_now()
            producer = self.producers[topic] = await self._make_producer(topic, transaction, self._extend)
        transaction.check()  # its end may not have come to a producer that was being made
        return producer

    async def commit_offsets(self, consumer: GroupConsumer, offsets: Mapping[int, int] | None = None) -> None:
        """Commit what a consumer in a group has read, as ``seglog.transaction.Transaction.commit_offsets``."""
        check_in_group(consumer)
        transaction, committed = self._core.open, self._committed
        places = await consumer.commit_in_transaction(self._core, transaction, offsets)
        committed.append((consumer, places))  # which is another list from the next transaction on

    async def commit(self) -> None:
        """Commit, as ``seglog.transaction.Transaction.commit``. A cancelled call may have committed."""
        self._loop.check()
        if not self._core.begin_end(is_commit=True):
            return
        try:
            for producer in [] if self._core.is_committing else list(self.producers.values()):
                await producer.flush()
        except SeglogError as error:
            await self._abort_after(error)
            raise self._core.failed(error) from error
        await self._converse(self._core.ending(is_commit=True))
        for consumer, places in self._committed:
            consumer.note_committed(places)

    async def abort(self) -> None:
        """Abort, as ``seglog.transaction.Transaction.abort``."""
        self._loop.check()
        if not self._core.begin_end(is_commit=False):
            return
        while self.producers:
            _, producer = self.producers.popitem()
            await producer.abort()
        await self._converse(self._core.ending(is_commit=False))

    async def leave(self, link: Link, deadline: float) -> None:
        """As ``seglog.transaction.Transaction.leave``, until ``deadline``, deaf to a cancellation."""
        if not self._core.is_to_leave:
            return
        for producer in list(self.producers.values()):
            producer.abort_now()
        with suppress(SeglogError):
            leaving = partial(link.converse, self._core.leaving(), seconds=END_SECONDS)
            await self._loop.shielded(deadline, leaving)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refuse_with

    async def __aenter__(self) -> Self:
        if self._core.is_to_be_aborted:
            await self.abort()  # which was interrupted, or not answered
        await self._converse(self._core.beginning())
        self._committed = []
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._core.is_open:
            return  # it was ended within the block
        if error is None:
            try:
                await self.commit()
            except SeglogError:
                raise
            except BaseException as cancelled:
                await self._end_after(cancelled)
                raise
        elif not (self._core.is_committing and isinstance(error, TransactionUnanswered)):
            await self._end_after(error)

    async def _end_after(self, error: BaseException) -> None:
        """End the transaction because of ``error``: a commit for which the broker was asked is waited for."""
        if self._core.is_committing:
            with suppress(SeglogError):
                await self._loop.shielded(self._loop.now() + END_SECONDS, self.commit)
        else:
            await self._abort_after(error)

    async def _abort_after(self, error: BaseException) -> None:
        try:
            has_ended = await self._loop.shielded(self._loop.now() + END_SECONDS, self.abort)
        except SeglogError as failed:
            error.add_note(f"seglog: the broker aborts the transaction in time: {failed.message}")
        else:
            if not has_ended:
                error.add_note("seglog: the broker aborts the transaction in time: it did not answer")
