"""The promise that ``await producer.send`` gives back."""

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
    """A record on its way; await it for its receipt, at any time, as often as you like, from any task.

    Dropping it is fine: a failure that nobody looked at is raised by the next ``flush``. A cancelled wait leaves the
    record on its way.
    """

    __slots__ = ("_waiter",)

    def __init__(self, batch: "ProducerBatch", index: int, timestamp: int, waiter: Waiter) -> None:
        super().__init__(batch, index, timestamp)
        self._waiter = waiter

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.result().__await__()

    async def result(self) -> Receipt:
        """Wait for the receipt; the same as awaiting the delivery. Raises what kept the record from being acked."""
        await self._settled()
        return self._receipt()

    async def exception(self) -> SeglogError | None:
        """What kept the record from being acknowledged, or None; waits like ``result``."""
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
