"""Large messages in pieces: the same as at once, and no piece is long."""

import tracemalloc
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from seglog_protocol.kafka import (
    Malformed,
    Request,
    Response,
    decoded_bytes_max,
    messages,
    read_message,
    read_request,
    read_request_header,
    read_request_in_pieces,
    read_response,
    write_message,
    write_request,
    write_response,
    write_response_in_pieces,
)
from seglog_protocol.kafka.compiler import message_reader
from seglog_protocol.kafka.definitions import Definition, Field, StructDefinition, apis, definition
from seglog_protocol.kafka.source import PIECE_BYTES
from seglog_protocol.kafka.varints import DECODED_ELEMENT_BYTES, ELEMENTS_IN_ALL_MAX, ELEMENTS_MAX, TAGS_MAX, varint
from tests.support import each_case
from tests.unit.protocol.kafka.instances import Instances

ResultT = TypeVar("ResultT")

FETCH = messages.OffsetFetchRequest
FOUND = messages.OffsetFetchResponse


def run(pieces: Generator[int, None, ResultT]) -> tuple[ResultT, list[int]]:
    """The result, and how far it was before each piece."""
    places: list[int] = []
    while True:
        try:
            places.append(next(pieces))
        except StopIteration as done:
            return done.value, places


def frame_of(request: Request, version: int) -> memoryview:
    return memoryview(b"".join(write_request(1, "me", request, version)))[4:]


def test_in_pieces_a_message_is_what_it_is_at_once() -> None:
    for key, api in apis().items():
        for version in api.versions:
            request = Instances(version).message(api.request, version)
            assert isinstance(request, Request)
            frame = frame_of(request, version)
            header = read_request_header(frame)
            assert run(read_request_in_pieces(header, frame))[0] == read_request(header, frame) == request
            response = Instances(version).message(api.response, version)
            assert isinstance(response, Response)
            written = b"".join(run(write_response_in_pieces(7, response, version))[0])
            assert written == b"".join(write_response(7, response, version))
            assert read_response(key, version, memoryview(written)[4:]) == (7, response)


@pytest.mark.parametrize("version", [5, 8])
def test_no_piece_is_long(version: int) -> None:
    topics = [FETCH.OffsetFetchRequestTopic(name="t", partition_indexes=[1, 2]) for _ in range(ELEMENTS_MAX)]
    groups = [FETCH.OffsetFetchRequestGroup(group_id="g", topics=[]) for _ in range(ELEMENTS_MAX)]
    frame = frame_of(FETCH(group_id="g", topics=topics, groups=groups), version)
    header = read_request_header(frame)
    _, places = run(read_request_in_pieces(header, frame))
    assert longest(places, len(frame)) <= PIECE_BYTES + 100
    partition = FOUND.OffsetFetchResponsePartitions(metadata="x" * 50)
    topic = FOUND.OffsetFetchResponseTopics(name="t", partitions=[partition] * 2_000)
    old = FOUND.OffsetFetchResponseTopic(partitions=[FOUND.OffsetFetchResponsePartition(metadata="x" * 50)] * 2_000)
    group = FOUND.OffsetFetchResponseGroup(group_id="g", topics=[topic] * 5)
    chunks, places = run(write_response_in_pieces(1, FOUND(topics=[old] * 15, groups=[group] * 3), version))
    assert longest(places, sum(map(len, chunks))) <= PIECE_BYTES + 200


def longest(places: list[int], end: int) -> int:
    return max(behind - place for place, behind in zip(places, [*places[1:], end], strict=True))


def test_records_which_are_not_copied_count_for_a_piece() -> None:
    cls = messages.FetchResponse
    partitions = [cls.PartitionData(records=b"records") for _ in range(5_000)]
    response = cls(responses=[cls.FetchableTopicResponse(topic="t", partitions=partitions)])
    assert 5 <= len(run(write_response_in_pieces(1, response, 12))[1]) <= 50


def nested(topics: int, partitions: int) -> Request:
    cls = messages.DeleteRecordsRequest
    named = [
        cls.DeleteRecordsTopic(name="t", partitions=[cls.DeleteRecordsPartition() for _ in range(partitions)])
        for _ in range(topics)
    ]
    return cls(topics=named)


def test_all_arrays_of_a_large_message_together_have_a_bounded_number_of_elements() -> None:
    fits, too_many = nested(50, ELEMENTS_IN_ALL_MAX // 50 - 1), nested(50, ELEMENTS_IN_ALL_MAX // 50)
    frame = frame_of(fits, 2)
    assert run(read_request_in_pieces(read_request_header(frame), frame))[0] == fits
    frame = frame_of(too_many, 2)
    with pytest.raises(Malformed, match=f"a count of {ELEMENTS_IN_ALL_MAX + 50}, which may be {ELEMENTS_IN_ALL_MAX}"):
        run(read_request_in_pieces(read_request_header(frame), frame))


def arrays(message: Definition, struct: StructDefinition, version: int, *outer: Field) -> Iterator[tuple[Field, ...]]:
    """Each array of a message, behind those that it stands in."""
    for field in struct.fields:
        if field.is_array and version in field.versions:
            yield (*outer, field)
            inner = message.structs.get(field.type.removeprefix("[]"))
            if inner is not None:
                yield from arrays(message, inner, version, *outer, field)


def filled(made: Any, cls: Any, path: Sequence[Field], counts: Sequence[int]) -> Any:
    """``made`` with so many elements in the first array of ``path``, each with so many in the next."""
    type_ = path[0].type.removeprefix("[]")
    leaf = {"string": "", "uuid": bytes(16), "int8": 100}.get(type_, 1000)
    elements = [getattr(cls, type_, lambda: leaf)() for _ in range(counts[0])]
    setattr(
        made, path[0].name, [filled(each, cls, path[1:], counts[1:]) for each in elements] if path[1:] else elements
    )
    return made


@each_case("api", apis().values(), ids=lambda api: api.request)
def test_the_smallest_elements_of_a_request_take_no_more_than_what_is_counted_for_its_bytes(api: Any) -> None:
    message, cls = definition(api.request), getattr(messages, api.request)
    for version in {api.versions.start, api.versions.stop - 1}:
        for path in arrays(message, message.struct, version):
            for counts in {(500, *[1] * (len(path) - 1)), (*[1] * (len(path) - 1), 500)}:
                frame = frame_of(filled(cls(), cls, path, counts), version)
                header = read_request_header(frame)
                run(read_request_in_pieces(header, frame))  # the reader is made
                tracemalloc.start()
                try:
                    kept = run(read_request_in_pieces(header, frame))
                    taken = tracemalloc.get_traced_memory()[0]
                finally:
                    tracemalloc.stop()
                assert taken <= decoded_bytes_max(len(frame)), (version, path, counts)
                assert taken <= DECODED_ELEMENT_BYTES * 500 * len(path), (version, path, counts)
                del kept


def test_a_record_of_the_broker_has_as_many_elements_as_it_was_written_with() -> None:
    cls = messages.ConsumerGroupTargetAssignmentMemberValue
    topics = [cls.TopicPartition(topic_id=bytes(16), partitions=[0]) for _ in range(ELEMENTS_IN_ALL_MAX + 1)]
    written = write_message(cls(topic_partitions=topics), 0)
    assert len(read_message(cls, 0, written).topic_partitions) == len(topics)
    read = run(message_reader(cls.__name__, 0, in_pieces=True)(memoryview(written), 0))[0][0]
    assert len(read.topic_partitions) == len(topics)
    of_a_member = messages.ConsumerProtocolSubscription
    with pytest.raises(Malformed, match=f"which may be {ELEMENTS_MAX}"):
        read_message(of_a_member, 0, write_message(of_a_member(topics=["t"] * (ELEMENTS_MAX + 1)), 0))


@each_case(
    ("message", "version"),
    [(messages.HeartbeatRequest(), 4), (messages.FetchRequest(), 15)],
    ids=["plain", "known tags"],
)
@each_case("read", [read_request, lambda *asked: run(read_request_in_pieces(*asked))[0]])
def test_a_struct_has_a_bounded_number_of_tagged_fields(
    message: Request, version: int, read: Callable[..., Any]
) -> None:
    frame = bytes(frame_of(message, version))
    assert frame.endswith(b"\0")
    for count, fits in ((TAGS_MAX, True), (TAGS_MAX + 1, False)):
        longer = memoryview(frame[:-1] + varint(count) + b"\x7f\0" * count)
        header = read_request_header(longer)
        if fits:
            assert read(header, longer) == message
        else:
            with pytest.raises(Malformed, match=f"{count} tagged fields, of which there may be {TAGS_MAX}"):
                read(header, longer)
