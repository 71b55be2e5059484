"""The future that ``send`` returns.

A Delivery is only an index into its batch: the batch is resolved once for all its records, and an unused delivery costs
three slots. A batch that had to be split points to its two halves.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from seglog.error_copies import copied
from seglog.formatting import seconds_of
from seglog_protocol.errors import ClientTimeoutError, SeglogError

if TYPE_CHECKING:
    from seglog.batching import ProducerBatch


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


class Waiter(Protocol):
    """What a blocking delivery needs of its producer."""

    def wait_for(self, batch: "ProducerBatch", timeout: float | None) -> bool:
        """Drive the producer until the batch is resolved; False when ``timeout`` seconds pass first."""
        ...


class Delivery(Promise):
    """A record being sent. It may be ignored: a failure not seen here is raised by the next ``flush``."""

    __slots__ = ("_waiter",)

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int, waiter: Waiter) -> None:
        # Not by a call of the other __init__: one object is made for each record.
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._waiter = waiter

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt, at most ``timeout`` seconds.

        Raises the record's error, or ClientTimeoutError after ``timeout``, when the record is still being sent.
        """
        batch = self._batch
        if not batch.is_resolved and not self._waiter.wait_for(batch, timeout):
            raise ClientTimeoutError(
                f"the record was not acknowledged within {seconds_of(timeout or 0)}; it is still on its way"
            )
        return self._receipt()

    def exception(self, timeout: float | None = None) -> SeglogError | None:
        """The error of a failed record, or None; waits like ``result``."""
        try:
            self.result(timeout)
        except SeglogError as error:
            if not self.done():
                raise
            return error
        return None
