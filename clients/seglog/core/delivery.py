"""Receipts, and the common parts of producers and of the futures of receipts that their ``send`` returns.

A delivery is only an index into its batch: the batch is resolved once for all its records, and an unused delivery costs
four slots. A batch that had to be split points to its two halves.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from seglog.core.errors import copied

if TYPE_CHECKING:
    from seglog.core.accumulator import ProducerBatch
    from seglog.core.producer import ProducerCore
    from seglog.core.timestamps import TimestampWatch
    from seglog.core.transactions import OpenTransaction


class Receipt(NamedTuple):
    """An acknowledged record: its position and what it has reached.

    ``offset`` is -1 at ack "none", which gets no answer, and where the record is known to be in the log but its answer
    was lost and the broker restarted before the retry. ``timestamp`` (epoch ms) is the record's own, or the broker's
    append time for a LogAppendTime topic. ``ack`` is what was reached: "none", "os" (survives a crash of the broker) or
    "disk" (survives power loss). ``expired_on_arrival``: the record's timestamp was already past the topic's
    ``retention.ms`` at append, so it will be deleted soon.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    ack: str
    expired_on_arrival: bool = False


class Promise:
    """The common part of both kinds of Delivery: a batch and an index in it, which a split may change."""

    __slots__ = ("_batch", "_index", "_producer", "_timestamp")

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int, producer: Any) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._producer = producer

    def done(self) -> bool:
        """Whether the record has been acknowledged or has failed. Never waits."""
        return self._where()[0].is_resolved

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            where = " beside its receipt, which result() waits for" if name in Receipt._fields else ": see result()"
            raise AttributeError(f"a delivery has no {name!r}{where}")

    def _receipt(self) -> Receipt:
        """The receipt of a resolved record; raises the error of a failed one."""
        batch, index = self._where()
        if batch.error is not None:
            batch.mark_seen(index)
            raise copied(batch.error) from batch.error.__cause__
        timestamp = self._timestamp if batch.append_time < 0 else batch.append_time
        offset = -1 if batch.base_offset < 0 else batch.base_offset + index
        has_expired = 0 <= timestamp < batch.expired_before
        return Receipt(batch.topic, batch.partition, offset, timestamp, batch.ack, has_expired)

    def _where(self) -> "tuple[ProducerBatch, int]":
        batch, index = self._batch, self._index
        while batch.halves is not None:
            left, right = batch.halves
            batch, index = (left, index) if index < left.record_count else (right, index - left.record_count)
        return batch, index


class ProducerFacts:
    """The common part of both kinds of Producer: what they tell of their topic and of what was sent."""

    transaction: "OpenTransaction | None"
    """That of which records are part from now on."""
    _core: "ProducerCore"

    def begin(self, transaction: "OpenTransaction") -> bool:
        """Send in this transaction from now on; False, and nothing changes, where records of another are on their way.

        Raises ClientError if its end has begun.
        """
        transaction.check()
        if self.transaction is not transaction:
            if self._core.accumulator.unresolved:
                return False
            self._core.accumulator.begin_epoch(transaction.epoch)
            self.transaction = transaction
        return True

    @property
    def partitions(self) -> int:
        """The topic's known number of partitions."""
        return self._core.partitions

    @property
    def batch_bytes_max(self) -> int:
        """Largest batch, in bytes, that the topic accepts."""
        return self._core.message_bytes_max

    @property
    def timestamps(self) -> "TimestampWatch":
        """The topic's timestamp checks."""
        return self._core.timestamps

    @property
    def expired_on_arrival(self) -> int:
        """Number of records sent with a timestamp past the topic's retention, which are deleted soon."""
        return self._core.expired_on_arrival

    @property
    def has_expired(self) -> bool:
        """Whether any record was not acknowledged within the delivery timeout."""
        return self._core.accumulator.has_expired
