"""The blocking client's transactions: producers of several topics, and offsets of groups, that count together."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from seglog.core.conversations import Conversation
from seglog.core.producer_options import Content, HeaderInput
from seglog.core.transactions import OpenTransaction, TransactionCore, check_in_group
from seglog.core.wrong_face import refuse_async
from seglog_protocol.errors import SeglogError

if TYPE_CHECKING:
    from seglog.group_consumer import GroupConsumer
    from seglog.link import Link
    from seglog.producer import Delivery, Producer

Converse = Callable[[Conversation[Any]], object]
"""Runs a conversation with the broker."""


class Extend:
    """Makes partitions part of a transaction. Threads that wait for one request share the next one."""

    def __init__(self, core: TransactionCore, converse: Converse) -> None:
        self._core = core
        self._converse = converse
        self._asking = threading.Lock()

    def __call__(self, transaction: OpenTransaction, topic: str, partitions: list[int]) -> None:
        """Return when batches of these partitions may be sent.

        Raises TransactionFenced, ClientError if the transaction has ended, and the broker's errors.
        """
        if transaction.wants(topic, partitions):
            with self._asking:
                self._converse(self._core.extending(transaction, topic, partitions))


class Transaction:
    """The transactions of one transactional id, one after the other: each ``with`` block is one.

    Made by ``Client.transaction``. Leaving the block commits, leaving it by an exception aborts. Any thread may send;
    one thread begins and ends.
    """

    def __init__(
        self,
        core: TransactionCore,
        converse: Converse,
        make_producer: "Callable[[str, OpenTransaction, Extend], Producer]",
    ) -> None:
        """``make_producer`` makes the producer of a topic, whose partitions the last argument adds to transactions."""
        self._core = core
        self._converse = converse
        self._make_producer = make_producer
        self.producers: dict[str, Producer] = {}
        """By topic. Whoever made this closes them when it is let go of."""
        self._extend = Extend(core, converse)
        self._making = threading.Lock()
        self._committed: list[tuple[GroupConsumer, dict[int, int]]] = []

    @property
    def transactional_id(self) -> str:
        """The id: of all that use it, the producer that began last is the one that counts."""
        return self._core.transactional_id

    def send(
        self,
        topic: str,
        value: Content,
        key: Content = None,
        *,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        headers: HeaderInput = (),
    ) -> "Delivery":
        """Send a record to a topic, as ``Producer.send``; it can be read at "read_committed" after the commit.

        Raises what ``Producer.send`` raises, UnknownTopicError, TransactionFenced, and ClientError where no transaction
        is open, or where it has ended before the record was part of it.
        """
        transaction = self._core.open
        producer = self.producers.get(topic)
        if producer is None or producer.transaction is not transaction:
            producer = self._producer(topic, transaction)
        return producer.send(value, key, timestamp=timestamp, partition=partition, headers=headers, part_of=transaction)

    def _producer(self, topic: str, transaction: OpenTransaction) -> "Producer":
        with self._making:
            transaction.check()
            producer = self.producers.get(topic)
            if producer is not None and producer.begin(transaction):
                return producer
            if producer is not None:  # an abort was interrupted before it came to this one
                self.producers.pop(topic, None)
                producer.abort_now()
            producer = self.producers[topic] = self._make_producer(topic, transaction, self._extend)
        transaction.check()  # its end may not have come to a producer that was being made
        return producer

    def commit_offsets(self, consumer: "GroupConsumer", offsets: Mapping[int, int] | None = None) -> None:
        """Commit what a consumer in a group has read, or ``{partition: offset}``, as part of the transaction.

        The consumer is one without ``auto_commit``. Raises a GroupError when its partitions may have been given to
        others meanwhile: leave the block by it, then nothing of the transaction counts.
        """
        check_in_group(consumer)
        transaction, committed = self._core.open, self._committed
        places = consumer.commit_in_transaction(self._core, transaction, offsets)
        committed.append((consumer, places))  # which is another list from the next transaction on

    def commit(self) -> None:
        """Commit: when it returns, all of it counts, and survives a loss of power.

        Raises TransactionAborted (do its work again in a new one), TransactionUnanswered (call ``commit`` again), and
        TransactionFenced (another producer has the id).
        """
        if not self._core.begin_end(is_commit=True):
            return
        try:
            for producer in [] if self._core.is_committing else list(self.producers.values()):
                producer.flush()
        except SeglogError as error:
            self._abort_after(error)
            raise self._core.failed(error) from error
        self._converse(self._core.ending(is_commit=True))
        for consumer, places in self._committed:
            consumer.note_committed(places)

    def abort(self) -> None:
        """Abort: nothing of it counts. What is on its way is dropped.

        Raises TransactionUnanswered (call ``abort`` again), and ClientError after a commit, also after one that the
        broker has not answered.
        """
        if not self._core.begin_end(is_commit=False):
            return
        while self.producers:
            _, producer = self.producers.popitem()
            producer.abort()
        self._converse(self._core.ending(is_commit=False))

    def leave(self, link: "Link", seconds: float) -> None:
        """Abort what is open, because the client is closed; a broker that does not answer does it at its timeout."""
        if not self._core.is_to_leave:
            return
        for producer in list(self.producers.values()):
            producer.abort_now()
        with suppress(SeglogError):
            link.converse(self._core.leaving(), timeout=seconds)

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuse_async

    def __enter__(self) -> Self:
        if self._core.is_to_be_aborted:
            self.abort()  # which was interrupted, or not answered
        self._converse(self._core.beginning())
        self._committed = []
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._core.is_open:
            return  # it was ended within the block
        if error is None:
            try:
                self.commit()
            except SeglogError:
                raise
            except BaseException as interrupt:
                if not self._core.is_committing:
                    self._abort_after(interrupt)
                raise
        elif not self._core.is_committing:
            self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        try:
            self.abort()
        except SeglogError as failed:
            error.add_note(f"seglog: the transaction is left to the broker, which aborts it in time: {failed.message}")
