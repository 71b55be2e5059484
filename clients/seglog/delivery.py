"""The promise that ``send`` gives back.

A Delivery is only an index into its batch: the batch is resolved once for all its records, and a program that never
looks at its deliveries pays three slots for each. A batch that had to be split points to its two halves.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from seglog.failures import copied
from seglog.words import seconds_of
from seglog_protocol.errors import ClientTimeoutError, SeglogError

if TYPE_CHECKING:
    from seglog.batching import ProducerBatch


class Receipt(NamedTuple):
    """Where a record is, and what it has reached.

    ``offset`` is -1 at ack "none", which is not answered, and where the record is known to be in the log, but its
    answer was lost and the broker restarted before the record was sent again. ``timestamp`` (epoch ms) is the record's
    own, or the broker's time of append where the topic keeps that. ``ack`` is what was reached: "none", "os" (survives
    a crash of the broker) or "disk" (survives power loss). ``expired_on_arrival``: by its timestamp the record was
    older than the topic's ``retention.ms`` keeps when it was appended, so it will be deleted soon.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    ack: str
    expired_on_arrival: bool = False


class Promise:
    """What a delivery of either face knows: its batch and its place there, which a split may change."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether it is known what became of the record. Never waits."""
        return self._where()[0].is_resolved

    def _receipt(self) -> Receipt:
        """The receipt when all is known; raises what kept the record from being acknowledged."""
        batch, index = self._where()
        if batch.error is not None:
            batch.looked_at(index)
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
        """Do the producer's work until the batch is resolved; False when ``timeout`` seconds pass first."""
        ...


class Delivery(Promise):
    """A record on its way. Dropping it is fine: a failure that nobody looked at is raised by the next ``flush``."""

    __slots__ = ("_waiter",)

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int, waiter: Waiter) -> None:
        super().__init__(batch, index, timestamp)
        self._waiter = waiter

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt, at most ``timeout`` seconds.

        Raises what kept the record from being acknowledged, or ClientTimeoutError when the time is over; the record is
        still on its way then.
        """
        batch = self._batch
        if not batch.is_resolved and not self._waiter.wait_for(batch, timeout):
            raise ClientTimeoutError(
                f"the record was not acknowledged within {seconds_of(timeout or 0)}; it is still on its way"
            )
        return self._receipt()

    def exception(self, timeout: float | None = None) -> SeglogError | None:
        """What kept the record from being acknowledged, or None; waits like ``result``."""
        try:
            self.result(timeout)
        except SeglogError as error:
            if not self.done():
                raise
            return error
        return None
