"""Receipts, and the common part of the futures of receipts that ``send`` returns.

A delivery is only an index into its batch: the batch is resolved once for all its records, and an unused delivery costs
three slots. A batch that had to be split points to its two halves.
"""

from typing import TYPE_CHECKING, NamedTuple

from seglog.core.errors import copied

if TYPE_CHECKING:
    from seglog.core.accumulator import ProducerBatch


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

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the record has been acknowledged or has failed. Never waits."""
        return self._where()[0].is_resolved

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
