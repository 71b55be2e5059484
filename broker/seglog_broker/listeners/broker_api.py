"""What a listener knows of the broker: the narrow face that ``broker.Broker`` shows it, and tests put a double behind.

A listener turns bytes into these calls and their results into bytes; it keeps no state of any partition.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.io.filesystem import File
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import (
    Ack,
    AppendReply,
    AppendRequest,
    FetchReply,
    FetchRequest,
    HelloReply,
    Message,
    Request,
)


class Pending(Protocol):
    """An append that has been written, as far as that goes at once, and may still wait for its ack."""

    @property
    def is_written(self) -> bool:
        """Whether ``write_rest`` is not needed; until then there is nothing else to ask it."""
        ...

    @property
    def effort(self) -> int:
        """How much has been done for it at a stretch: 1 for a small batch."""
        ...

    async def write_rest(self) -> None:
        """Write what did not go at once, because it takes others' turns or records must be looked at elsewhere."""
        ...

    @property
    def ack(self) -> Ack:
        """What was asked for."""
        ...

    @property
    def reply(self) -> AppendReply | None:
        """The answer, when nothing is left to wait for."""
        ...

    def listen(self, listener: Callable[[], None], /) -> bool:
        """Have ``listener`` called, once, when there should be an answer; False where that takes a task: ``wait``."""
        ...

    async def wait(self) -> AppendReply:
        """The answer, when every partition has reached the ack asked for, or has failed."""
        ...


class Slice(Protocol):
    """``size`` bytes from ``position`` of an open segment file."""

    @property
    def file(self) -> File:
        """Open for as long as the answer it belongs to."""
        ...

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def is_removed(self) -> bool:
        """Whether the file has left its log."""
        ...


class Answer(Protocol):
    """The answer to a fetch, and a lease on every file it names; leaving it gives the leases back."""

    @property
    def reply(self) -> FetchReply:
        """The header's part."""
        ...

    @property
    def payload(self) -> bytes:
        """The first part of the payload, as far as it is at hand."""
        ...

    @property
    def slices(self) -> Sequence[Slice]:
        """The rest of the payload, in order."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the payload, all of it."""
        ...

    def close(self) -> None:
        """Give the leases back."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> object: ...


class BrokerFace(Protocol):
    """The requests a broker serves. Every method may raise SeglogError; OSError means the disk is in the way."""

    @property
    def config(self) -> BrokerConfig:
        """Limits and addresses."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Counters to add to."""
        ...

    @property
    def request_memory(self) -> RequestMemory:
        """What large requests are received into."""
        ...

    @property
    def transfers(self) -> Transfers:
        """Where answers that cannot be sent at once are known."""
        ...

    @property
    def offload(self) -> Offload:
        """Where blocking reads go."""
        ...

    async def turn(self) -> None:
        """Return when a request that has done much may do some more."""
        ...

    def hello(self) -> HelloReply:
        """Who answers."""
        ...

    def missing_topics(self, request: AppendRequest, /) -> list[str]:
        """Topics that an append names, that do not exist, and that it may create."""
        ...

    async def create_missing(self, request: AppendRequest, /) -> dict[str, SeglogError]:
        """Create them; those that cannot be, and why."""
        ...

    def append(
        self, request: AppendRequest, payload: memoryview, refused: Mapping[str, SeglogError] | None = None, /
    ) -> Pending:
        """Write the batches in ``payload``; errors of single partitions stand in the reply.

        ``refused`` gives the error for topics that do not exist, where there is a better one.
        """
        ...

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None, /) -> Answer | None:
        """The answer, or None when it would have to wait. ``waiter`` has waited for it already."""
        ...

    def wait_for(self, request: FetchRequest, waiter: Waiter, /) -> bool:
        """Have ``waiter`` look again when there are ``min_bytes`` or ``max_wait_ms`` have passed.

        False where that takes a task: ``fetch``.
        """
        ...

    async def fetch(self, request: FetchRequest, waiter: Waiter, /) -> Answer:
        """The answer, when there are ``min_bytes`` or ``max_wait_ms`` have passed. May be cancelled.

        RequestCancelledError when ``waiter`` was ended first.
        """
        ...

    async def answer(self, request: Request, /) -> tuple[Message, bytes]:
        """The reply, and its payload, to any request that none of the methods above is for."""
        ...
