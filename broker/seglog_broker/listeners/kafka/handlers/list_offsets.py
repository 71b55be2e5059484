"""ListOffsets: the offsets at moments, and at the ends of partitions.

ListOffsets
  1   one offset, and the timestamp of its record
  2   isolation level, throttle time
  4   leader epochs
  5   OFFSET_NOT_AVAILABLE
  6   flexible
  7   the largest timestamp (-3)
  8   the earliest local offset (-4)
  9   the latest tiered offset (-5)
  10  a timeout of tiered storage
  11  the earliest offset that waits for its upload (-6)
"""

from collections import Counter
from types import MappingProxyType
from typing import Final

from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.kafka.errors import error_code
from seglog_broker.listeners.kafka.handlers.fetch import epoch_error, isolation_of
from seglog_broker.listeners.kafka.turns import PARTITION_COST
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.runtime import budget
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import OffsetsPartition, OffsetsReply, OffsetsRequest
from seglog_protocol.record_batch import NO_TIMESTAMP
from seglog_protocol.steps import Steps

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
"""Moments with a meaning of their own (Kafka's ListOffsetsRequest). Here nothing is tiered, all is local."""

SEGMENT_COST: Final = 0.1
"""Microseconds to compare the largest timestamp of a segment."""

PARTITIONS_AT_ONCE: Final = 8
"""Partitions of a request that is answered in its connection's turn: they cost about as much as any request."""

_DESCRIBE: Final = Operation.DESCRIBE  # Python looks long for a member of an enumeration
_TOPIC: Final = Kind.TOPIC
_NEVER: Final = 1 << 15
_VERSIONS_MIN: Final = MappingProxyType(
    {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
)
"""The versions of ListOffsets since which these are known."""

_NO_OFFSET: Final = -1

_Partition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
_Topic = messages.ListOffsetsResponse.ListOffsetsTopicResponse


class ListOffsets:
    """One ListOffsets request: the request to the broker, and the response."""

    def __init__(self, context: RequestContext, request: messages.ListOffsetsRequest) -> None:
        """``read`` it to its end before anything else."""
        self._context = context
        self._asked = request
        self._wanted: list[OffsetsPartition] = []
        self._places: list[tuple[_Partition, int]] = []  # of the response, and the moments that are asked for
        self.response = messages.ListOffsetsResponse()

    @property
    def request(self) -> OffsetsRequest | None:
        """What the broker is asked; None for nothing."""
        return OffsetsRequest(self._wanted, isolation_of(self._asked.isolation_level)) if self._wanted else None

    def read(self) -> Steps[None]:
        """Make ``request``; yields where other tasks may run."""
        asked = self._asked.topics
        named = [(topic.name, item.partition_index) for topic in asked for item in topic.partitions]
        repeated = Counter(named) - Counter(set(named)) if len(set(named)) < len(named) else {}
        refused: set[tuple[str, int]] = set()
        topics: dict[str, _Topic] = {}
        spent = 0.0
        for topic in asked:
            answered = topics.get(topic.name)
            if answered is None:
                answered = topics[topic.name] = _Topic(name=topic.name)
                self.response.topics.append(answered)
            may_look = self._context.session.allows(_DESCRIBE, _TOPIC, topic.name)
            for item in topic.partitions:
                place = _Partition(partition_index=item.partition_index)
                if not may_look:
                    place.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    answered.partitions.append(place)
                    continue
                if (topic.name, item.partition_index) in repeated:
                    if (topic.name, item.partition_index) not in refused:
                        refused.add((topic.name, item.partition_index))
                        place.error_code = ErrorCode.INVALID_REQUEST
                        answered.partitions.append(place)
                    continue
                answered.partitions.append(place)
                cost = self._cost(topic.name, item)
                spent += cost
                if spent > budget.TURN:
                    spent = cost
                    yield
                self._read_one(topic.name, item, place)

    def _cost(self, topic: str, item: messages.ListOffsetsRequest.ListOffsetsPartition) -> float:
        if item.timestamp != MAX_TIMESTAMP:
            return PARTITION_COST
        partition = self._context.broker.partitions.find_readable(topic, item.partition_index)
        return PARTITION_COST + (0 if partition is None else SEGMENT_COST * len(partition.log.segments))

    def _read_one(self, topic: str, item: messages.ListOffsetsRequest.ListOffsetsPartition, place: _Partition) -> None:
        partition = self._context.broker.partitions.find_readable(topic, item.partition_index)
        if item.timestamp < 0 and self._context.version < _VERSIONS_MIN.get(item.timestamp, _NEVER):
            place.error_code = ErrorCode.UNSUPPORTED_VERSION
            return
        if partition is not None:
            refusal = epoch_error(item.current_leader_epoch, partition.log.leader_epoch)
            if refusal is not None:
                place.error_code = refusal
                return
        if item.partition_index < 0:
            place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        moment = item.timestamp if item.timestamp >= 0 else None
        if item.timestamp == MAX_TIMESTAMP and partition is not None:
            moment = max([segment.largest_timestamp for segment in partition.log.segments])
            if moment == NO_TIMESTAMP:
                return  # an empty log: no record, and no error
        self._wanted.append(OffsetsPartition(topic, item.partition_index, moment))
        self._places.append((place, item.timestamp))

    def note(self, reply: OffsetsReply) -> None:
        """Copy what the broker found into ``response``."""
        for (place, asked), result in zip(self._places, reply.partitions, strict=True):
            if result.error is not None:
                place.error_code = error_code(result.error)
                continue
            assert result.earliest is not None
            assert result.latest is not None
            assert result.leader_epoch is not None
            assert result.partition is not None
            if asked in (EARLIEST, EARLIEST_LOCAL):
                place.offset = result.earliest
            elif asked == LATEST:
                place.offset = result.latest
            elif asked in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
                place.offset = _NO_OFFSET
            elif result.offset is not None:
                place.offset = result.offset
                place.timestamp = _NO_OFFSET if result.timestamp is None else result.timestamp
            if place.offset != _NO_OFFSET:
                place.leader_epoch = result.leader_epoch  # also of a record, if the partition is gone
                partition = self._context.broker.partitions.find_readable(result.topic, result.partition)
                if asked != LATEST and partition is not None:
                    place.leader_epoch = partition.log.epochs.epoch_for(place.offset)

    def fail(self, error: Exception) -> None:
        """Put the error of the request as a whole into ``response``."""
        code = error_code(as_seglog_error(error, "ListOffsets"))
        for place, _ in self._places:
            place.error_code = code


def list_offsets(context: RequestContext, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse | None:
    """The offsets at moments: the first record at or after a timestamp (ms), or an end of the log.

    None if that waits for the disk, or takes longer than one turn.
    """
    if sum([len(topic.partitions) for topic in request.topics]) > PARTITIONS_AT_ONCE:
        return None
    asked = ListOffsets(context, request)
    for _ in asked.read():
        return None
    if asked.request is not None:
        try:
            reply = context.broker.answer_now(asked.request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            asked.fail(error)
            return asked.response
        if reply is None:
            return None
        assert isinstance(reply, OffsetsReply)
        asked.note(reply)
    return asked.response
