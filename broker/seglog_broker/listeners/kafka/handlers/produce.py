"""Produce: requests to appends, and the results of appends to responses.

Produce
  3   record batches of magic 2; a transactional id
  4   KAFKA_STORAGE_ERROR
  5   log start offset
  7   zstd
  8   an error message, and the bad records of a batch by index
  9   flexible
  10  current leader and its endpoint, in tagged fields that are never sent: there is one node
  11  TRANSACTION_ABORTABLE
  12  adds partitions to transactions
  13  topics by id
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import error_code, error_message
from seglog_broker.listeners.kafka.handlers.offsets import missing_partition
from seglog_broker.listeners.kafka.transactional_produce import is_barred, refused_by_partition
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol.access import Kind, Operation
from seglog_protocol.compression import Codec
from seglog_protocol.errors import InvalidTransactionStateError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.kafka import RequestHeader, is_flexible, messages, write_response
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.varints import Refused, read_varint, skip_tags
from seglog_protocol.messages import Ack, AppendPartition, AppendRequest, AppendResult
from seglog_protocol.record_batch import CODEC_MASK, HEADER_SIZE, LOG_OVERHEAD, NO_TIMESTAMP

ZSTD_VERSION_MIN: Final = 7
"""The first version of Produce in which batches may be compressed with zstd."""

TOPIC_ID_VERSION_MIN: Final = 13
"""The first version of Produce that names topics by their ids."""

_LENGTH_MAGIC_ATTRIBUTES: Final = struct.Struct(">8xi4xb4xh")
"""The beginning of a batch header: how long the batch is from its twelfth byte on, magic, attributes."""

_MAGIC_POSITION: Final = 16
_MAGIC: Final = 2

RECORDS_NAMED_MAX: Final = 10_000
"""Bad records that a response names: as many as librdkafka has in a batch by default, in some milliseconds."""

_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR,
    }
)  # fmt: skip
"""Errors with which Kafka leaves out the log start offset."""

_RecordError = messages.ProduceResponse.BatchIndexAndErrorMessage
_PartitionResponse = messages.ProduceResponse.PartitionProduceResponse
_TopicResponse = messages.ProduceResponse.TopicProduceResponse
_TopicData = messages.ProduceRequest.TopicProduceData
_PartitionData = messages.ProduceRequest.PartitionProduceData


class Produce:
    """A Produce request in progress: its appends, and the response that grows with their results."""

    __slots__ = (
        "_acks",
        "_appends",
        "_context",
        "_correlation_id",
        "_is_barred",
        "_missing",
        "_names_left",
        "_partitions",
        "_refused",
        "_response",
        "_transactional_id",
        "ack",
        "is_silent",
        "problem",
    )

    def __init__(
        self,
        context: RequestContext,
        correlation_id: int,
        acks: int,
        transactional_id: str | None = None,
        *,
        barred: bool = False,
    ) -> None:
        """A request of which nothing is known yet: ``add`` its partitions.

        With ``barred`` they are all refused: the client may not use the transactional id.
        """
        self._context = context
        self._is_barred = barred
        self._refused = ErrorCode.NONE  # of the topic that was added last
        self._acks = acks
        self._correlation_id = correlation_id
        self._transactional_id = transactional_id
        self.is_silent = acks == 0
        """True for acks=0: there is no response, and an error closes the connection."""
        self.ack = ack_of(context, acks)
        self._appends: list[Append] = []
        self.problem: str | None = None
        """Why a batch was refused before it reached the broker; None if none was."""
        self._partitions = context.broker.partitions
        self._names_left = RECORDS_NAMED_MAX
        self._response = messages.ProduceResponse()
        self._missing = 0

    @classmethod
    def of(cls, context: RequestContext, correlation_id: int, request: messages.ProduceRequest) -> "Produce":
        """A request whose partitions are to be added."""
        barred = is_barred(context, request)
        return cls(context, correlation_id, request.acks, request.transactional_id, barred=barred)

    def add_topic(self, topic: _TopicData) -> None:
        """Begin the answer about a topic; then ``add`` its partitions."""
        name = topic.name
        if self._context.version >= TOPIC_ID_VERSION_MIN:
            known = self._context.topic_with_id(topic.topic_id)
            name = "" if known is None else known.name
        if self._is_barred:
            self._refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        else:
            self._refused = self._context.code_for(Operation.WRITE, Kind.TOPIC, name) if name else ErrorCode.NONE
        self._response.responses.append(_TopicResponse(name=name, topic_id=topic.topic_id))

    def add(self, partitions: Iterable[_PartitionData]) -> None:
        """Take partitions of the topic that was added last."""
        answered = self._response.responses[-1]
        name = answered.name
        is_known = self._context.version < TOPIC_ID_VERSION_MIN or name
        for item in partitions:
            result = _PartitionResponse(index=item.index, base_offset=-1)
            answered.partition_responses.append(result)
            if self._refused:
                self._refuse(result, self._refused, None)
                continue
            if not name:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_known else ErrorCode.UNKNOWN_TOPIC_ID
                self._refuse(result, code, "no topic has this id")
                continue
            refusal: tuple[ErrorCode, str] | None
            if self.ack is None:
                refusal = ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, not {self._acks}"
            else:
                refusal = why_no_batch(item.records, self._context.version)
            if refusal is not None:
                missing = missing_partition(self._context, name, item.index)  # which comes first
                self._refuse(result, *(missing or refusal))
            else:
                assert self.ack is not None
                assert item.records is not None
                append = AppendRequest([AppendPartition(name, item.index, len(item.records))], self.ack)
                self._appends.append((ResultPart(self, result), append, item.records))
                self._missing += 1

    def expect(self, name: str, topic_id: bytes, indexes: Iterable[int]) -> list[_PartitionResponse]:
        """Results of appends to one topic that are made elsewhere; ``note`` their outcomes."""
        results = [_PartitionResponse(index=index, base_offset=-1) for index in indexes]
        self._response.responses.append(_TopicResponse(name=name, topic_id=topic_id, partition_responses=results))
        self._missing += len(results)
        return results

    def _refuse(self, result: _PartitionResponse, code: ErrorCode, why: str | None) -> None:
        result.error_code, result.error_message = code, why
        self.problem = why or "the client may not write there"
        self._context.session.counts.of("Produce").errors[code.name] += 1

    def take_appends(self) -> "list[Append]":
        """The appends, once: kept here, they would hold the memory of the frame until their ack."""
        appends, self._appends = self._appends, []
        return appends

    def note(self, result: _PartitionResponse, outcome: AppendOutcome) -> None:
        """Put the outcome of one append into the response."""
        self._missing -= 1
        error = outcome if isinstance(outcome, SeglogError) else outcome.partitions[0].error
        if error is not None:
            if isinstance(error, InvalidTransactionStateError):
                error = refused_by_partition(self._context, self._transactional_id, error)
            result.error_code, result.error_message = error_code(error), error_message(error)
            named = list(getattr(error, "records", ()))[: self._names_left]
            self._names_left -= len(named)
            result.record_errors = [_RecordError(batch_index=record) for record in named]
            if named:  # the sentence stands once: clients take the partition's for the others
                result.record_errors[0].batch_index_error_message = result.error_message
        if isinstance(outcome, SeglogError):
            return
        (appended,) = outcome.partitions
        if result.error_code not in _WITHOUT_LOG_START:
            result.log_start_offset = log_start_of(self._partitions, appended)
        if error is not None:
            return
        assert appended.base_offset is not None
        result.base_offset = appended.base_offset
        result.log_append_time_ms = append_time_of(appended)

    def note_silent(self) -> None:
        """One append has ended, of a request that has no response."""
        self._missing -= 1

    @property
    def is_complete(self) -> bool:
        """True once the results of all its appends are known."""
        return not self._missing

    def encode(self) -> bytes:
        """The frame of the response. Raises nothing: it is called for the requests of many connections."""
        self._response.throttle_time_ms = self._context.usage.throttle_ms
        try:
            return b"".join(write_response(self._correlation_id, self._response, self._context.version))
        except Exception as error:  # noqa: BLE001 - a bug in one response must not end the others
            code = error_code(as_seglog_error(error, "Produce"))
        for topic in self._response.responses:
            topic.partition_responses = [
                _PartitionResponse(index=result.index, error_code=code, base_offset=-1)
                for result in topic.partition_responses
            ]
        return b"".join(write_response(self._correlation_id, self._response, self._context.version))


class Part:
    """What one append of a Produce request is answered to."""

    __slots__ = ()

    def answer(self, outcome: AppendOutcome) -> Buffer | None:
        """Take the outcome of the append; the frame of the response if the request has no other that is open."""
        raise NotImplementedError

    def end_silently(self) -> bool:
        """The append has ended, with acks=0; whether the request has no other that is open."""
        raise NotImplementedError


class ResultPart(Part):
    """An append whose result stands in the response of ``produce``; ``result`` is None if nothing is appended."""

    __slots__ = ("_result", "produce")

    def __init__(self, produce: Produce, result: _PartitionResponse | None) -> None:
        self.produce = produce
        self._result = result

    def answer(self, outcome: AppendOutcome) -> Buffer | None:
        """Put the outcome into the response."""
        if self._result is not None:
            self.produce.note(self._result, outcome)
        return self.produce.encode() if self.produce.is_complete else None

    def end_silently(self) -> bool:
        """Count it as ended."""
        if self._result is not None:
            self.produce.note_silent()
        return self.produce.is_complete


Append = tuple[Part, AppendRequest, memoryview]
"""One append of a Produce request, with its batch."""


def encode_responses(
    parts: Sequence[Part], outcomes: Sequence[AppendOutcome], counts: ApiMetrics, began: float
) -> bytearray:
    """The frames of the responses that are complete with these outcomes; they and their errors are counted.

    Their requests were taken up at ``began``.
    """
    frames = bytearray()
    count = 0
    for part, outcome in zip(parts, outcomes):
        error: SeglogError | None = None
        if isinstance(outcome, SeglogError):
            error = outcome
        elif outcome.partitions:  # none, where nothing was to be appended
            error = outcome.partitions[0].error
        if error is not None:
            counts.errors[error_code(error).name] += 1
        frame = part.answer(outcome)
        if frame is not None:
            frames += frame
            count += 1
    counts.note_answers(count, len(frames), began)
    return frames


def log_start_of(partitions: PartitionTable, appended: AppendResult) -> int:
    """The log start offset of a partition that was appended to; -1 if it is gone."""
    partition = partitions.find_readable(appended.topic, appended.partition)
    return -1 if partition is None else partition.log.log_start_offset


def append_time_of(appended: AppendResult) -> int:
    """The time (ms) that the broker has given to appended records; -1 where they keep their own."""
    return NO_TIMESTAMP if appended.timestamp is None else appended.timestamp


def why_no_batch(records: memoryview | None, version: int) -> tuple[ErrorCode, str] | None:
    """Why ``records`` are not exactly one batch as this version of Produce may carry it; None if they are.

    Source: Kafka's ProduceRequest.validateRecords.
    """
    if records is None or len(records) < HEADER_SIZE:
        if records is not None and len(records) > _MAGIC_POSITION and records[_MAGIC_POSITION] != _MAGIC:
            return _old_format(records[_MAGIC_POSITION])
        return ErrorCode.INVALID_RECORD, "each partition must have exactly one record batch, this one has none"
    length, magic, attributes = _LENGTH_MAGIC_ATTRIBUTES.unpack_from(records)
    if magic != _MAGIC:
        return _old_format(magic)
    size = LOG_OVERHEAD + length
    if size < len(records):
        return (
            ErrorCode.INVALID_RECORD,
            f"each partition must have exactly one record batch: the first has {size} of {len(records)} bytes",
        )
    if version < ZSTD_VERSION_MIN and attributes & CODEC_MASK == Codec.ZSTD:
        return (
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs version {ZSTD_VERSION_MIN} of Produce or a newer one, this is version {version}",
        )
    return None


def _old_format(magic: int) -> tuple[ErrorCode, str]:
    return ErrorCode.INVALID_RECORD, f"record batches have magic 2, this one has {magic}: use a newer client"


def ack_of(context: RequestContext, acks: int) -> Ack | None:
    """The ack that a Produce request asks for; None for a number that Kafka does not know."""
    if acks == 0:
        return "none"
    if acks == 1:
        return "os"
    return context.config.seglog_kafka_acks_all if acks == -1 else None


PARTITIONS_MAX: Final = 10_000
"""The most partitions in a Produce request, as in one on the native port."""

APPENDS_AT_ONCE: Final = budget.items_of(budget.BATCH)
"""Partitions of one that are written before other connections have their turn."""

_TOPIC_ID_BYTES: Final = 16
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_INDEX_BYTES: Final = 4


def partitions_of(header: RequestHeader, frame: memoryview) -> int:
    """The partitions that a Produce request names, a topic without any counted as one; at most PARTITIONS_MAX + 1.

    0 for a malformed request, which is refused when it is read. No objects are made: a hundred megabytes of partitions
    without records would be millions of them, and seconds of work on the loop.
    """
    try:
        return _count(header, frame)
    except (struct.error, IndexError, Refused):
        return 0


def _count(header: RequestHeader, frame: memoryview) -> int:
    flexible = is_flexible(header.api_key, header.version)
    p = _after_text(frame, header.body, flexible) + _ACKS_AND_TIMEOUT_BYTES
    topics, p = read_size(frame, p, flexible)
    counted = 0
    for _ in range(topics):
        p = p + _TOPIC_ID_BYTES if header.version >= TOPIC_ID_VERSION_MIN else _after_text(frame, p, flexible)
        partitions, p = read_size(frame, p, flexible)
        counted += max(1, partitions)
        if counted > PARTITIONS_MAX:
            return PARTITIONS_MAX + 1
        for _ in range(partitions):
            size, p = read_size(frame, p + _INDEX_BYTES, flexible)
            p = _after_tags(frame, p + size, flexible)
        p = _after_tags(frame, p, flexible)
    return counted


def begin_of_partitions(header: RequestHeader, frame: memoryview) -> int:
    """Where the number of the first topic's partitions stands in a Produce request that is not malformed."""
    flexible = is_flexible(header.api_key, header.version)
    _, p = read_size(frame, _after_text(frame, header.body, flexible) + _ACKS_AND_TIMEOUT_BYTES, flexible)
    return p + _TOPIC_ID_BYTES if header.version >= TOPIC_ID_VERSION_MIN else _after_text(frame, p, flexible)


def read_size(frame: memoryview, p: int, flexible: bool) -> tuple[int, int]:
    """A count or a length at ``p``, 0 for null, and where what it counts begins."""
    if flexible:
        size, p = read_varint(frame, p)
        return max(0, size - 1), p
    return max(0, _INT32.unpack_from(frame, p)[0]), p + _INT32.size


def _after_text(frame: memoryview, p: int, flexible: bool) -> int:
    if flexible:
        size, p = read_varint(frame, p)
        return p + max(0, size - 1)
    return p + _INT16.size + max(0, int(_INT16.unpack_from(frame, p)[0]))


def _after_tags(frame: memoryview, p: int, flexible: bool) -> int:
    if not flexible:
        return p
    count, p = read_varint(frame, p)
    return skip_tags(frame, p, len(frame), count)


APIS: Final = (Api(0, "Produce", range(3, 14)),)
