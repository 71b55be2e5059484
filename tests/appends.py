"""One append to a broker in this process."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from seglog_broker.engine.pending_appends import PendingAppends
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import Ack, AppendPartition, AppendReply, AppendRequest, AppendResult


class TakesAppends(Protocol):
    """A broker, as far as it is appended to."""

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError] | None = None,
        /,
    ) -> PendingAppends: ...


class OneAppend:
    """An append in progress."""

    def __init__(self, appends: PendingAppends) -> None:
        self._appends = appends
        self.write_rest = appends.write_rest
        self.listen = appends.listen

    @property
    def is_written(self) -> bool:
        return self._appends.is_written

    @property
    def spent(self) -> float:
        return self._appends.spent

    @property
    def reply(self) -> AppendReply | None:
        replies = self._appends.replies
        return None if replies is None else _only(replies)

    @property
    def result(self) -> AppendResult:
        """That of its first partition, which is there already."""
        assert self.reply is not None
        return self.reply.partitions[0]

    async def wait(self) -> AppendReply:
        return _only(await self._appends.wait())


def append_request(
    broker: TakesAppends, request: AppendRequest, payload: memoryview, refused: Mapping[str, SeglogError] | None = None
) -> OneAppend:
    """Append with one request. Raises the error by which it is refused as a whole."""
    appends = broker.append([request], [payload], refused)
    if appends.replies:
        _only(appends.replies)
    return OneAppend(appends)


def append_batch(
    broker: TakesAppends, encoded: bytes, topic: str = "t", partition: int = 0, *, ack: Ack = "os"
) -> OneAppend:
    """Append batches to one partition."""
    request = AppendRequest([AppendPartition(topic, partition, len(encoded))], ack)
    return append_request(broker, request, memoryview(bytearray(encoded)))


def _only(replies: Sequence[AppendReply | SeglogError]) -> AppendReply:
    (reply,) = replies
    if isinstance(reply, SeglogError):
        raise reply
    return reply
