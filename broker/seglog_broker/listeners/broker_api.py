"""The part of the broker that listeners use; ``broker.Broker`` implements it, and so do the doubles of the tests.

A listener turns bytes into these calls and their results into bytes. It keeps no state of a partition.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.io.filesystem import File
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import (
    AppendReply,
    AppendRequest,
    FetchReply,
    FetchRequest,
    HelloReply,
    Message,
    Request,
)


class Acknowledged(Protocol):
    """Appends that are written and may still wait for their ack."""

    @property
    def replies(self) -> list[AppendReply | SeglogError] | None:
        """The reply to each; None while they have to wait."""
        ...

    def listen(self, listener: Callable[[], None], /) -> bool:
        """Call ``listener`` once, when the replies may be known. False: not possible here, use ``wait``."""
        ...

    async def wait(self) -> list[AppendReply | SeglogError]:
        """The replies, once every partition has reached the requested ack or has failed. Any number of tasks may."""
        ...


class Pending(Acknowledged, Protocol):
    """Appends that are written, or partly written."""

    @property
    def is_written(self) -> bool:
        """Whether everything is written. If not, call ``keep_payloads`` and ``write_rest`` before anything else."""
        ...

    @property
    def effort(self) -> float:
        """Work done for them without a pause; 1 is that of a small batch alone."""
        ...

    def keep_payloads(self) -> int:
        """Copy the payloads of what is not written yet, because their buffer gets other bytes; the bytes copied."""
        ...

    async def write_rest(self) -> None:
        """Write what was left out because it takes several turns of the loop, or a worker process for the records."""
        ...


class Slice(Protocol):
    """``size`` bytes from ``position`` of an open segment file."""

    @property
    def file(self) -> File:
        """The open file; it stays open until the answer it belongs to is closed."""
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

    def __len__(self) -> int:
        """``size``."""
        ...


class Answer(Protocol):
    """The answer to a fetch, and a lease on every file it names; leaving it gives the leases back."""

    @property
    def reply(self) -> FetchReply:
        """The header's part."""
        ...

    @property
    def payload(self) -> bytes:
        """The first part of the payload: what is in memory already."""
        ...

    @property
    def slices(self) -> Sequence[Slice]:
        """The rest of the payload, in order."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the whole payload."""
        ...

    def close(self) -> None:
        """Give the leases back."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> object: ...


class BrokerApi(Protocol):
    """The requests a broker serves. Every method may raise SeglogError, and OSError for an error of the disk."""

    @property
    def config(self) -> BrokerConfig:
        """Limits and addresses."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Counters for the listener to increase."""
        ...

    @property
    def request_memory(self) -> RequestMemory:
        """Memory for large requests."""
        ...

    @property
    def response_memory(self) -> ResponseMemory:
        """Memory for large responses."""
        ...

    @property
    def transfers(self) -> Transfers:
        """The register of answers that are being sent slowly."""
        ...

    @property
    def offload(self) -> Offload:
        """Threads for blocking reads."""
        ...

    async def turn(self) -> None:
        """Wait for the next turn of a request with much work, so that other tasks run in between."""
        ...

    def hello(self) -> HelloReply:
        """The reply to a hello."""
        ...

    def missing_topics(self, request: AppendRequest, /) -> list[str]:
        """Topics named by an append that do not exist and that it may create."""
        ...

    async def create_missing(self, request: AppendRequest, /) -> dict[str, SeglogError]:
        """Create the missing topics; the errors of those that could not be created, by name."""
        ...

    def is_plain(self, request: AppendRequest, payload: memoryview, /) -> bool:
        """Whether ``append`` writes it at once, also together with others.

        It is short, its topics exist, nothing looks at its records, and its ack is sent.
        """
        ...

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError] | None = None,
        /,
        *,
        at_once: bool = False,
    ) -> Pending:
        """Write the batches in ``payloads``, of requests with one ack; the replies have errors of single partitions.

        ``refused`` holds the errors of ``create_missing``, for topics that could not be created. ``at_once`` is for
        plain ones: then all is written when it returns.
        """
        ...

    def sync_now(self) -> None:
        """Sync at once, on the loop, what was appended with ack ``disk``: for the only client at the moment."""
        ...

    def sync_soon(self, start_soon: Callable[[Callable[[], Awaitable[None]]], object], /) -> None:
        """Begin a task, if need be, that syncs what was appended with ack ``disk``."""
        ...

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None, /) -> Answer | None:
        """The answer, or None when the fetch has to wait. ``waiter`` is given when it has waited already."""
        ...

    def wait_for(self, request: FetchRequest, waiter: Waiter, /) -> bool:
        """Call ``waiter`` when there are ``min_bytes`` or ``max_wait_ms`` have passed.

        False: not possible for this request, use ``fetch`` in a task.
        """
        ...

    async def fetch(self, request: FetchRequest, waiter: Waiter, /) -> Answer:
        """The answer, once there are ``min_bytes`` or ``max_wait_ms`` have passed. May be cancelled.

        Raises RequestCancelledError when ``waiter`` was ended first.
        """
        ...

    def answer_now(self, request: Request, /) -> Message | None:
        """The reply to any other request, if it is short, needs no payload and waits for nothing; else None."""
        ...

    async def answer(self, request: Request, host: str = "", /) -> tuple[Message, bytes]:
        """The reply and its payload to any other request, from a client at ``host``."""
        ...
