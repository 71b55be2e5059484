"""The future that ``await producer.send`` returns."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from seglog.delivery import Promise, Receipt
from seglog_protocol.errors import SeglogError

if TYPE_CHECKING:
    from seglog.batching import ProducerBatch


class Waiter(Protocol):
    """What a delivery needs of its producer."""

    async def settled(self, batch: "ProducerBatch") -> None:
        """Wait until the batch has been resolved or split."""
        ...


class Delivery(Promise):
    """A record being sent; await it for its receipt, any number of times, from any task.

    It may be ignored: a failure not seen here is raised by the next ``flush``. A cancelled wait does not cancel the
    record.
    """

    __slots__ = ("_waiter",)

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int, waiter: Waiter) -> None:
        super().__init__(batch, index, timestamp)
        self._waiter = waiter

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.result().__await__()

    async def result(self) -> Receipt:
        """Wait for the receipt, as awaiting the delivery does. Raises the error of a failed record."""
        await self._settled()
        return self._receipt()

    async def exception(self) -> SeglogError | None:
        """The error of a failed record, or None; waits like ``result``."""
        await self._settled()
        try:
            self._receipt()
        except SeglogError as error:
            return error
        return None

    async def _settled(self) -> None:
        while True:
            batch, _ = self._where()
            await self._waiter.settled(batch)
            if self.done():
                return
