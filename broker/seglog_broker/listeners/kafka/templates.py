"""Requests that repeat an earlier one of their connection but for their correlation id and a few numbers.

Nearly all of a client do. A template holds the bytes that they share, and those that their responses share: their
handlers run as ever, the codec does not. Nor does the handler of Produce, whose template holds what the bytes say, too;
requests that differ in more, or fail, are served in the ordinary way. The bytes of a response are the same either way.
"""

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

from seglog_broker.listeners.kafka.context import Api, Repeats, RequestContext
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
from seglog_broker.listeners.kafka.transactional_produce import must_wait
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.runtime import budget
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.kafka import RequestHeader, is_flexible, messages, write_request, write_response
from seglog_protocol.kafka.codec import Chunks
from seglog_protocol.kafka.definitions import definition
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.kafka.varints import Refused, varint
from seglog_protocol.kafka.wire_types import FIXED
from seglog_protocol.messages import AppendPartition, AppendRequest
from seglog_protocol.record_batch import is_transactional

TEMPLATES_MAX: Final = 8
"""Templates of one connection."""

MISSES_A_TEMPLATE: Final = 64
"""Requests without a template before one is replaced: to make one takes as long as to serve a request or two."""

SHARED_BYTES_MAX: Final = 1024
"""The bytes that the requests of one template share, at most, and those that their responses share."""

AFTER_IDS: Final = 8
"""Where a request goes on behind api key, version and correlation id."""

_INT32: Final = struct.Struct(">i")
_SIZE_AND_ID: Final = struct.Struct(">ii")

_MARK: Final = b"\0"
"""Stands for records where a template is made."""


class Template:
    """What requests of one kind share."""

    def begins(self, frame: memoryview) -> bool:
        """Whether a request is of this kind, as far as its beginning says."""
        raise NotImplementedError


class Templates:
    """The templates of one connection, the one used last first."""

    def __init__(self) -> None:
        self._templates: list[Template] = []
        self._tries = 0  # to make one, up to TEMPLATES_MAX
        self._misses = 0  # since the last try

    def find(self, frame: memoryview) -> Template | None:
        """The template of a request; None if it has none."""
        templates = self._templates
        for number, template in enumerate(templates):
            if template.begins(frame):
                if number:
                    templates.insert(0, templates.pop(number))
                return template
        return None

    def is_due(self) -> bool:
        """Note a request that has no template; whether one is to be made of it."""
        self._misses += 1
        if self._tries >= TEMPLATES_MAX and self._misses < MISSES_A_TEMPLATE:
            return False
        self._tries, self._misses = min(self._tries + 1, TEMPLATES_MAX), 0
        return True

    def add(self, template: Template) -> None:
        """Keep a template, in place of the one that was used longest ago if there are too many."""
        del self._templates[TEMPLATES_MAX - 1 :]
        self._templates.insert(0, template)

    def remove(self, template: Template) -> None:
        """Drop a template that its requests do not fit any more."""
        if template in self._templates:
            self._templates.remove(template)


_Asked = tuple[int, Any, str, struct.Struct]
"""A number that varies in requests: where it stands, its struct, its name and how it is written."""


class Repeated(Template):
    """The template of requests that are served one after the other: one request, whose numbers are set each time."""

    def __init__(self, api: Api, header: RequestHeader, request: Request, response: Response) -> None:
        """Of a request whose ``response`` is sent; it changes the numbers in both, and the response's records."""
        assert api.repeats is not None
        repeats = api.repeats
        self.api = api
        self._header = header
        self._request = request
        self._asked: list[_Asked] = []
        for path, name in repeats.asked:
            parts = _parts(request, path)
            _, layout = _numbers(request, path, [name], header.version)
            low, high = [self._written_request(parts, name, value) for value in (0, -1)]
            positions = _differing(low, high, layout.size)
            self._asked += [(at, part, name, layout) for at, part in zip(positions, parts, strict=True)]
        self._asked.sort(key=itemgetter(0))
        low = self._written_request([], "", 0)
        self._size = len(low)
        self._ids = low[:4]
        begins = [AFTER_IDS, *[at + layout.size for at, _, _, layout in self._asked]]
        ends = [*[at for at, *_ in self._asked], len(low)]
        self._shared = [(begin, end, low[begin:end]) for begin, end in zip(begins, ends, strict=True) if begin < end]

        self.has_responses = bool(repeats.numbers)
        """True if it writes them, too."""
        self._between: list[tuple[bytes, bytes]] = []  # before the numbers of each part; and behind, up to its records
        self._last = b""
        if self.has_responses:
            self._take_apart(repeats, header, response)

    def _take_apart(self, repeats: Repeats, header: RequestHeader, response: Response) -> None:
        """Learn what its responses share."""
        self._path = repeats.answered
        self._fixed = repeats.fixed
        names, self._layout = _numbers(response, repeats.answered, repeats.numbers, header.version)
        self._numbers: Callable[[Any], Any] = attrgetter(*names)
        self._is_single = len(names) == 1
        self._has_records = repeats.has_records
        self._is_flexible = is_flexible(header.api_key, header.version)
        parts = _parts(response, self._path)
        self._fixed_values = [getattr(part, self._fixed) for part in parts] if self._fixed else []
        written = [self._written_response(response, parts, names, value) for value in (0, -1)]
        self._last = written[0][-1]
        for chunk, other in zip(written[0], written[1], strict=True):
            begin = 0
            for position in _differing(chunk, other, self._layout.size):
                end = position + self._layout.size
                self._between.append((chunk[begin:position], chunk[end:] if self._has_records else b""))
                begin = end
            self._last = chunk[begin:]

    def _written_request(self, parts: list[Any], name: str, value: int) -> bytes:
        for part in parts:
            setattr(part, name, value)
        frame = write_request(0, self._header.client_id, self._request, self._header.version)
        return b"".join(frame)[_INT32.size :]

    def _written_response(self, response: Response, parts: list[Any], names: list[str], value: int) -> list[bytes]:
        """What stands around the records, without their lengths."""
        for part in parts:
            for name in names:
                setattr(part, name, value)
            if self._has_records:
                part.records = _MARK
        chunks = [bytes(chunk) for chunk in write_response(0, response, self._header.version)]
        if not self._has_records:
            return chunks
        length = 1 if self._is_flexible else _INT32.size
        marked = 2 * len(parts)  # nothing may follow the last of them
        return [*[chunk[:-length] for chunk in chunks[:marked:2]], *(chunks[marked:] or [b""])]

    @property
    def is_small(self) -> bool:
        """Whether it may be kept."""
        answered = sum([len(before) + len(behind) for before, behind in self._between]) + len(self._last)
        return self._size <= SHARED_BYTES_MAX and answered <= SHARED_BYTES_MAX

    def begins(self, frame: memoryview) -> bool:
        """Whether a request is of this kind."""
        if len(frame) != self._size or frame[:4] != self._ids:
            return False
        for begin, end, shared in self._shared:  # noqa: SIM110 - a generator for ``all`` would take as long again
            if frame[begin:end] != shared:
                return False
        return True

    def header_of(self, frame: memoryview) -> RequestHeader:
        """The header of a request of this kind."""
        known = self._header
        return RequestHeader(known.api_key, known.version, _INT32.unpack_from(frame, 4)[0], known.client_id, known.body)

    def request_of(self, frame: memoryview) -> Request:
        """A request of this kind, as long as no other one is asked for."""
        for position, part, name, layout in self._asked:
            setattr(part, name, layout.unpack_from(frame, position)[0])
        return self._request

    def write(self, correlation_id: int, response: Response) -> Chunks | None:
        """The frame of the response to it; None if that differs in more from the one before."""
        parts = _parts(response, self._path)
        if len(parts) != len(self._between):
            return None
        if self._fixed and [getattr(part, self._fixed) for part in parts] != self._fixed_values:
            return None
        chunks: Chunks = []
        w = bytearray()
        size = 0
        for part, (before, behind) in zip(parts, self._between, strict=True):
            w += before
            numbers = self._numbers(part)
            w += self._layout.pack(numbers) if self._is_single else self._layout.pack(*numbers)
            if self._has_records:
                w += behind
                records = part.records
                if records is None:
                    return None
                count = len(records)
                w += varint(count + 1) if self._is_flexible else _INT32.pack(count)
                if isinstance(records, bytes):
                    w += records
                else:
                    size += len(w) + count
                    chunks += [w, records]
                    w = bytearray()
        w += self._last
        chunks.append(w)
        _SIZE_AND_ID.pack_into(chunks[0], 0, size + len(w) - _INT32.size, correlation_id)
        return chunks


def _parts(message: Request | Response, path: Sequence[str]) -> list[Any]:
    """The structs that stand in the arrays of ``path``, one in the other, in their order; without any, the message."""
    parts: list[Any] = [message]
    for name in path:
        parts = [inner for part in parts for inner in getattr(part, name)]
    return parts


def _numbers(
    message: Request | Response, path: Sequence[str], names: Sequence[str], version: int
) -> tuple[list[str], struct.Struct]:
    """Those of the fields ``names`` that a version has, and how they stand one after the other."""
    described = definition(type(message).__name__)
    fields = described.struct.fields
    for name in path:
        (field,) = [field for field in fields if field.name == name]
        fields = described.structs[field.type.removeprefix("[]")].fields
    types = {field.name: field.type for field in fields if version in field.versions}
    found = [name for name in names if name in types]
    return found, struct.Struct(">" + "".join([FIXED[types[name]] for name in found]))


def _differing(low: bytes, high: bytes, size: int) -> list[int]:
    """Where numbers of ``size`` bytes together stand: 0 and -1 differ in all of them."""
    found: list[int] = []
    position = 0
    while position < len(low):
        if low[position] != high[position]:
            found.append(position)
            position += size
        else:
            position += 1
    return found


# --- Produce ----------------------------------------------------------------------------------------------------------

PARTITIONS_MAX: Final = min(64, budget.items_of(budget.BATCH))
"""Partitions of a request that is served by a template. Their number takes one byte where it is a varint."""

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
        self.client_id = context.client_id
        self._acks = request.acks
        self._transactional_id = request.transactional_id
        self._authority = context.broker.authority
        self._epoch = -1  # of the rules by which it may be served
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
        if self._epoch != self._authority.epoch and not self._is_allowed():
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
                if self._transactional_id is None and is_transactional(records):
                    return None  # it is refused
                repeated.indexes.append(index)
                appends.append((repeated, AppendRequest([AppendPartition(name, index, size)], ack), records))
                position = end
        except (IndexError, struct.error, Refused):
            return None
        if not appends or frame[position:] != self._end:
            return None
        if self._transactional_id is None:
            return appends
        batches = [(name, index, records) for index, (_, _, records) in zip(repeated.indexes, appends)]
        return None if must_wait(context, self._transactional_id, batches) else appends

    def _is_allowed(self) -> bool:
        """True if rules, which have changed, let the client write as before; what they refuse is answered in full."""
        sees, id_ = self._context.session.sees, self._transactional_id
        is_allowed = sees(Operation.WRITE, Kind.TOPIC, self._name)
        is_allowed = is_allowed and (id_ is None or sees(Operation.WRITE, Kind.TRANSACTIONAL_ID, id_))
        if is_allowed:
            self._epoch = self._authority.epoch
        return is_allowed

    def answer(self, correlation_id: int, indexes: list[int], outcomes: list[AppendOutcome]) -> Buffer:
        """The frame of the response to a request that appended to the partitions ``indexes``."""
        if self._context.usage.muted_until:
            return self._answer_in_full(correlation_id, indexes, outcomes)
        frame = bytearray(self._blank_of(len(indexes)))
        _SIZE_AND_ID.pack_into(frame, 0, len(frame) - _INT32.size, correlation_id)
        position = self._first
        partitions = self._context.broker.partitions
        for index, outcome in zip(indexes, outcomes):
            if isinstance(outcome, SeglogError) or outcome.partitions[0].error is not None:
                return self._answer_in_full(correlation_id, indexes, outcomes)
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

    def _answer_in_full(self, correlation_id: int, indexes: list[int], outcomes: list[AppendOutcome]) -> bytes:
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
