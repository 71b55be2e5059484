"""A topic as a queue, and workers in a share group, in Kafka's protocol: the same for seglog and Kafka."""

import struct
from functools import cache
from itertools import repeat
from typing import Final

from benchmarks.batches import one_record
from benchmarks.group_wire import Replies, find_coordinator, frame, when_loaded
from benchmarks.harness import BenchmarkError
from benchmarks.peers.jobs import LoadProcess
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.peers.sides import KafkaServer
from benchmarks.queues.common import NOT_YET, QUEUE, Queue, group_of
from benchmarks.raw_client import open_socket
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.varints import read_varint

_METADATA: Final = 12
_HEARTBEAT: Final = 1
_SHARE_FETCH: Final = 2
_ALTER_CONFIGS: Final = 1
_GROUP_OFFSETS: Final = 1
"""Versions."""

_GROUP_RESOURCE: Final = 32
_NEVER: Final = 2**63 - 1
_JOB_BYTES_MAX: Final = 1024
"""A fetch asks for so many bytes a job. Of more Kafka reads all, whatever it gives out: with the 50 MiB of its own
client it gives a worker that takes one job at a time a tenth as many."""

_WAIT_MS: Final = 500
_ACCEPT: Final = 1
_EMPTY_MAX: Final = 2
"""Answers without jobs, one after the other, until there are none."""


def _heartbeat(group: str, member: str, epoch: int = 0) -> messages.ShareGroupHeartbeatRequest:
    """Joins with epoch 0."""
    topics = None if epoch else [QUEUE]
    cls = messages.ShareGroupHeartbeatRequest
    return cls(group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics)


_PLACE: Final = 0x7EED_1D5A
"""Stands in requests where numbers are to be written."""

_EPOCH: Final = struct.Struct(">i")
_RANGE: Final = struct.Struct(">qq")
_RANGE_STRIDE: Final = _RANGE.size + 3  # one type of acknowledgement, no tagged fields
_ANSWER: Final = struct.Struct(">4xx4xhb4xb16xb4xhbhb9x")
"""The error and its message, the number of topics; of the one topic that of partitions; of the one partition the errors
of the fetch and of the acknowledgements, and their messages. Lengths are one more than they count."""

_SOUND: Final = (0, 0, 2, 2, 0, 0, 0, 0)
_EMPTY: Final = 4 + 1 + 4 + 2 + 1 + 4 + 1 + 1 + 1
"""Bytes of an answer without topics."""

_ACQUIRED: Final = struct.Struct(">qqhx")


class KafkaWorker:
    """A ``Talk`` of a member of the group ``run``: its request is a ShareFetch. The group has its state already."""

    framing: Final = Replies

    def __init__(self, number: int, run: int, at_once: int) -> None:
        self._joining = _heartbeat(group_of(run), f"worker-{number}")
        self._at_once = at_once
        self._topic_id = bytes(16)
        self._epoch = self._empty = 0
        self._held: list[tuple[int, int]] = []
        self._encoded = cache(self._encode)

    def begin(self, replies: Replies) -> None:
        """Join, open a share session, and hold first jobs if there are any for this worker."""
        cls = messages.MetadataRequest
        self._topic_id = replies.ask(cls(topics=[cls.MetadataRequestTopic(name=QUEUE)]), _METADATA).topics[0].topic_id
        when_loaded(lambda: int(replies.ask(self._joining, _HEARTBEAT).error_code), "ShareGroupHeartbeat")
        self._take(replies.ask_frame(bytes(self._patched())))

    def request(self) -> bytearray | None:
        """``Talk.request``: acknowledge what is held, and fetch."""
        self._epoch += 1
        return None if self._empty > _EMPTY_MAX else self._patched()

    def answered(self, reply: bytes) -> int:
        """``Talk.answered``."""
        count = sum(last - first + 1 for first, last in self._held)
        self._take(reply)
        return count

    def _take(self, reply: bytes) -> None:
        self._held = []
        if len(reply) != _EMPTY:
            if _ANSWER.unpack_from(reply) != _SOUND:
                raise BenchmarkError(f"ShareFetch was answered with {reply!r:.300}")
            view = memoryview(reply)
            size, at = read_varint(view, _ANSWER.size)
            count, at = read_varint(view, at + size - 1)
            found = _ACQUIRED.iter_unpack(view[at : at + (count - 1) * _ACQUIRED.size])
            self._held = [(first, last) for first, last, _ in found]
        self._empty = 0 if self._held else self._empty + 1

    def _patched(self) -> bytearray:
        data, epoch_at, range_at = self._encoded(len(self._held))
        _EPOCH.pack_into(data, epoch_at, self._epoch)
        for number, held in enumerate(self._held):
            _RANGE.pack_into(data, range_at + number * _RANGE_STRIDE, *held)
        return data

    def _encode(self, ranges: int) -> tuple[bytearray, int, int]:
        """A request that acknowledges so many ranges; where its epoch is, and the first range."""
        cls = messages.ShareFetchRequest
        batch = cls.AcknowledgementBatch(first_offset=_PLACE, last_offset=_PLACE, acknowledge_types=[_ACCEPT])
        partition = cls.FetchPartition(partition_index=0, acknowledgement_batches=[batch] * ranges)
        request = cls(
            group_id=self._joining.group_id,
            member_id=self._joining.member_id,
            share_session_epoch=_PLACE,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=self._at_once * _JOB_BYTES_MAX,
            max_records=self._at_once,
            batch_size=self._at_once,
            topics=[cls.FetchTopic(topic_id=self._topic_id, partitions=[partition])],
        )
        data = frame(request, _SHARE_FETCH)
        return bytearray(data), data.index(_EPOCH.pack(_PLACE)), data.find(_RANGE.pack(_PLACE, _PLACE))


class KafkaQueue(Queue):
    """A topic of one partition with a record a batch, and a share group for each run."""

    talk = "jobs, kafka"

    def __init__(self, server: KafkaServer, load: LoadProcess, jobs: int) -> None:
        super().__init__(server, load, jobs)
        with connect_kafka(server.port) as connection:
            connection.delete_topic(QUEUE)
            connection.create_topic(QUEUE, flush_messages=_NEVER)
            connection.fill(QUEUE, repeat(one_record(), jobs))

    def begin(self, group: str) -> None:
        """``Queue.begin``: return when the group has its state."""
        begin_with_the_earliest(self.server.port, group)
        with open_socket(self.server.port) as sock:
            replies = Replies(sock)
            find_coordinator(replies, group)
            epoch = 0

            def join() -> int:
                nonlocal epoch
                found = replies.ask(_heartbeat(group, "worker-0", epoch), _HEARTBEAT)
                epoch = found.member_epoch
                is_assigned = found.assignment is not None and found.assignment.topic_partitions
                return int(found.error_code) or (0 if is_assigned else NOT_YET)

            when_loaded(join, "ShareGroupHeartbeat")

    def work(self, workers: int, at_once: int, seconds: float) -> Measure:
        """``Queue.work``. BenchmarkError where other jobs are left than were not acknowledged."""
        found = super().work(workers, at_once, seconds)
        cls = messages.DescribeShareGroupOffsetsRequest
        asked = cls(groups=[cls.DescribeShareGroupOffsetsRequestGroup(group_id=group_of(self._run), topics=None)])
        with open_socket(self.server.port) as sock:
            lag = Replies(sock).ask(asked, _GROUP_OFFSETS).groups[0].topics[0].partitions[0].lag
        if found.count + lag != self.jobs:
            raise BenchmarkError(f"{found.count} of {self.jobs} jobs were acknowledged, {lag} are left")
        return found


def begin_with_the_earliest(port: int, group: str) -> None:
    """Have a share group begin with the jobs that are there."""
    cls = messages.IncrementalAlterConfigsRequest
    earliest = cls.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = cls.AlterConfigsResource(resource_type=_GROUP_RESOURCE, resource_name=group, configs=[earliest])
    with open_socket(port) as sock:
        code = Replies(sock).ask(cls(resources=[resource]), _ALTER_CONFIGS).responses[0].error_code
    if code:
        raise BenchmarkError(f"IncrementalAlterConfigs was answered with error {code}")
