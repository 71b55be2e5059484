"""Produce requests that repeat an earlier one of their connection but for correlation id, partitions and records.

Nearly all of a producer do. A template holds the bytes that they share, what these say, and their response but for its
numbers: neither the codec nor the handler of Produce runs. Requests that differ in more, or fail, are served in the
ordinary way. The bytes of a response are the same either way.
"""

import struct
from typing import Final

from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.kafka.handlers.produce import (
    TOPIC_ID_VERSION_MIN,
    Append,
    Part,
    Produce,
    ack_of,
    append_time_of,
    begin_of_partitions,
    log_start_of,
    read_size,
    why_no_batch,
)
from seglog_broker.listeners.kafka.templates import AFTER_IDS, SHARED_BYTES_MAX, Template
from seglog_broker.listeners.kafka.transactional_produce import must_wait
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.runtime import budget
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.kafka import RequestHeader, is_flexible, messages, write_response
from seglog_protocol.kafka.varints import Refused
from seglog_protocol.messages import AppendPartition, AppendRequest

PARTITIONS_MAX: Final = min(64, budget.items_of(budget.BATCH))
"""Partitions of a request that is served by a template. Their number takes one byte where it is a varint."""

_INT32: Final = struct.Struct(">i")
_SIZE_AND_ID: Final = struct.Struct(">ii")

_LOG_START_VERSION_MIN: Final = 5
_RESULT: Final = struct.Struct(">ihqqq")
"""A partition in the response: index, error code, base offset, time of the append, log start offset."""
_RESULT_WITHOUT_LOG_START: Final = struct.Struct(">ihqq")

_PartitionResponse = messages.ProduceResponse.PartitionProduceResponse
_TopicResponse = messages.ProduceResponse.TopicProduceResponse


def template_of(
    context: RequestContext, header: RequestHeader, frame: memoryview, request: messages.ProduceRequest
) -> "ProduceTemplate | None":
    """A template of a request that was served in the ordinary way; None where that is not possible."""
    if len(request.topic_data) != 1 or request.acks not in (1, -1):
        return None
    begin = begin_of_partitions(header, frame)
    if begin > AFTER_IDS + SHARED_BYTES_MAX:
        return None
    return ProduceTemplate(context, frame[:begin], request)


class ProduceTemplate(Template):
    """What the Produce requests of one producer to one topic share, and the responses to them."""

    def __init__(self, context: RequestContext, beginning: memoryview, request: messages.ProduceRequest) -> None:
        """``request`` begins with the bytes of ``beginning``, up to the number of its partitions."""
        (topic,) = request.topic_data
        self._context = context
        self._acks = request.acks
        self._transactional_id = request.transactional_id
        self._topic_id = topic.topic_id
        self._has_id = context.version >= TOPIC_ID_VERSION_MIN
        self._name = topic.name
        if self._has_id:
            known = context.topic_with_id(topic.topic_id)
            assert known is not None
            self._name = known.name
        self._is_flexible = is_flexible(request.API_KEY, context.version)
        self._begin = len(beginning)
        self._ids = bytes(beginning[:4])
        self._prefix = bytes(beginning[AFTER_IDS:])
        self._end = b"\0\0" if self._is_flexible else b""  # no tagged fields, of the topic and of the request
        self._has_log_start = context.version >= _LOG_START_VERSION_MIN
        response = self._response_of([0])
        self._first = next(at for at, byte in enumerate(self._response_of([-1])) if byte != response[at])
        self._result_size = len(self._response_of([0, 0])) - len(response)  # with the fields behind the numbers
        self._blank, self._blank_count = response, 1

    def _response_of(self, indexes: list[int]) -> bytes:
        results = [_PartitionResponse(index=index) for index in indexes]
        topic = _TopicResponse(name=self._name, topic_id=self._topic_id, partition_responses=results)
        return b"".join(write_response(0, messages.ProduceResponse(responses=[topic]), self._context.version))

    def begins(self, frame: memoryview) -> bool:
        """Whether a request begins as those of this template do."""
        return frame[AFTER_IDS : self._begin] == self._prefix and frame[:4] == self._ids

    def appends_of(self, frame: memoryview) -> list[Append] | None:
        """The appends of a request that begins so; None if it is to be served in the ordinary way."""
        context, name, is_flexible = self._context, self._name, self._is_flexible
        if self._has_id and context.topic_with_id(self._topic_id) is None:
            return None
        ack = ack_of(context, self._acks)
        assert ack is not None
        appends: list[Append] = []
        try:
            count, position = read_size(frame, self._begin, is_flexible)
            if count > PARTITIONS_MAX:
                return None
            repeated = RepeatedProduce(self, _INT32.unpack_from(frame, 4)[0])
            for _ in range(count):
                (index,) = _INT32.unpack_from(frame, position)
                size, position = read_size(frame, position + _INT32.size, is_flexible)
                end = position + size
                records = frame[position:end]
                if is_flexible:
                    if frame[end]:
                        return None  # it has tagged fields
                    end += 1
                if len(records) < size or why_no_batch(records, context.version) is not None:
                    return None
                repeated.indexes.append(index)
                appends.append((repeated, AppendRequest([AppendPartition(name, index, size)], ack), records))
                position = end
        except (IndexError, struct.error, Refused):
            return None
        if not appends or frame[position:] != self._end:
            return None
        batches = [(name, index, records) for index, (_, _, records) in zip(repeated.indexes, appends)]
        return None if must_wait(context, self._transactional_id, batches) else appends

    def answer(self, correlation_id: int, indexes: list[int], outcomes: list[AppendOutcome]) -> Buffer:
        """The frame of the response to a request that appended to the partitions ``indexes``."""
        frame = bytearray(self._blank_of(len(indexes)))
        _SIZE_AND_ID.pack_into(frame, 0, len(frame) - _INT32.size, correlation_id)
        position = self._first
        partitions = self._context.broker.partitions
        for index, outcome in zip(indexes, outcomes):
            if isinstance(outcome, SeglogError) or outcome.partitions[0].error is not None:
                return self._answer_with_errors(correlation_id, indexes, outcomes)
            appended = outcome.partitions[0]
            numbers = index, 0, appended.base_offset, append_time_of(appended)
            if self._has_log_start:
                _RESULT.pack_into(frame, position, *numbers, log_start_of(partitions, appended))
            else:
                _RESULT_WITHOUT_LOG_START.pack_into(frame, position, *numbers)
            position += self._result_size
        return frame

    def _blank_of(self, count: int) -> bytes:
        """A response with the results of ``count`` partitions, whose numbers are to be filled in."""
        if count != self._blank_count:
            self._blank, self._blank_count = self._response_of([0] * count), count
        return self._blank

    def _answer_with_errors(self, correlation_id: int, indexes: list[int], outcomes: list[AppendOutcome]) -> bytes:
        produce = Produce(self._context, correlation_id, self._acks, self._transactional_id)
        for result, outcome in zip(produce.expect(self._name, self._topic_id, indexes), outcomes, strict=True):
            produce.note(result, outcome)
        return produce.encode()


class RepeatedProduce(Part):
    """A Produce request that has a template: the part that each of its appends refers to."""

    __slots__ = ("_correlation_id", "_outcomes", "_template", "indexes")

    def __init__(self, template: ProduceTemplate, correlation_id: int) -> None:
        self._template = template
        self._correlation_id = correlation_id
        self.indexes: list[int] = []
        """Its partitions, in the order of its appends."""
        self._outcomes: list[AppendOutcome] = []

    def answer(self, outcome: AppendOutcome) -> Buffer | None:
        """Take the outcome of the next of its appends; the response with the last one, else None."""
        self._outcomes.append(outcome)
        if len(self._outcomes) < len(self.indexes):
            return None
        return self._template.answer(self._correlation_id, self.indexes, self._outcomes)
