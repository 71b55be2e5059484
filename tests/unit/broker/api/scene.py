"""Appends to a broker, and a broker with one topic for explanations: a batch fills a segment, time passes by hand."""

from collections.abc import Sequence
from typing import Any

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from tests.appends import append_request
from tests.logs import ManualClock, batch_of_size
from tests.unit.broker.brokers import open_broker

NOW = 1_700_000_000_000
MINUTE = 60_000
INTERVAL = 5 * MINUTE
FIRST = 30_000
SIZE = 1024
"""Of a batch, and of a segment: each append begins a new one."""


async def append(
    broker: Broker, *batches: bytes, topic: str = "t", partition: int = 0, ack: messages.Ack = "os"
) -> list[messages.AppendResult]:
    """The results of one request, when the ack is reached."""
    request = messages.AppendRequest([messages.AppendPartition(topic, partition, len(data)) for data in batches], ack)
    pending = append_request(broker, request, memoryview(bytearray(b"".join(batches))))
    return (pending.reply or await pending.wait()).partitions


class Scene:
    """A broker with a topic ``t`` that rolls for each batch, ages for ten minutes, and deletes after one."""

    def __init__(self, offload: InlineOffload | None = None, flags: Sequence[str] = ()) -> None:
        self.clock = ManualClock(NOW)
        self.fs = ForgetfulFileSystem()
        self.offload = offload or InlineOffload()
        self.flags = flags
        self.broker = self.open()

    def open(self) -> Broker:
        self.broker = open_broker(self.fs, *self.flags, clock=self.clock, offload=self.offload)
        return self.broker

    async def create(self, **settings: Any) -> None:
        config = {"segment.bytes": SIZE, "retention.ms": 10 * MINUTE, "file.delete.delay.ms": MINUTE}
        more = {name.replace("_", "."): value for name, value in settings.items()}
        await self.broker.create_topic(messages.CreateTopicRequest("t", 2, config | more))

    @property
    def log(self) -> PartitionLog:
        return self.broker.partitions["t", 0].log

    def append(self, *timestamps: int) -> None:
        """Append so that each append fills a segment."""
        for timestamp in timestamps:
            self.append_batch(batch_of_size(SIZE, timestamp))

    def append_batch(self, encoded: bytes) -> None:
        request = messages.AppendRequest([messages.AppendPartition("t", 0, len(encoded))], "os")
        reply = append_request(self.broker, request, memoryview(bytearray(encoded))).reply
        assert reply is not None
        assert reply.partitions[0].error is None

    async def check(self) -> None:
        await self.broker.expiry.check(list(self.broker.partitions.values()), TaskBoundary("retention"))

    async def explain(self, **paging: Any) -> tuple[messages.ExplainSegmentsReply, list[messages.ExplainedSegment]]:
        reply, payload = await self.broker.answer(messages.ExplainSegmentsRequest("t", 0, **paging))
        assert isinstance(reply, messages.ExplainSegmentsReply)
        return reply, messages.decode_segments(payload)

    async def segments(self) -> list[messages.ExplainedSegment]:
        return (await self.explain())[1]


async def made(**settings: Any) -> Scene:
    """A scene with a topic of these settings."""
    scene = Scene()
    await scene.create(**settings)
    return scene
