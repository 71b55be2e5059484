"""Frames: headers, sizes, chunks, versions."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.kafka import (
    Malformed,
    Request,
    RequestHeader,
    RequestHeaderReader,
    UnsupportedVersion,
    is_flexible,
    messages,
    read_message,
    read_request,
    read_request_header,
    versions,
    write_message,
    write_request,
    write_response,
)
from seglog_protocol.kafka.definitions import apis
from tests.support import each_case
from tests.unit.protocol.kafka.instances import SEEDS, VERSIONS, Instances


def frame_of(chunks: list[Any]) -> memoryview:
    """The frame without its size, which must be right."""
    data = b"".join(chunks)
    assert int.from_bytes(data[:4]) == len(data) - 4
    return memoryview(data)[4:]


def test_a_request_comes_back_with_its_header() -> None:
    for key, api in apis().items():
        for version in api.versions:
            for client_id in ("me äß€", "", None):
                request = Instances(version).message(api.request, version)
                assert isinstance(request, Request)
                frame = frame_of(write_request(-7, client_id, request, version))
                header = read_request_header(frame)
                assert header[:4] == (key, version, -7, client_id)
                assert read_request(header, frame) == request


def test_every_message_comes_back_as_it_was_written() -> None:
    for name, version in VERSIONS:
        for seed in SEEDS:
            message = Instances(seed).message(name, version)
            written = write_message(message, version)
            assert read_message(type(message), version, written) == message
            assert write_message(read_message(type(message), version, written), version) == written


def test_a_request_as_librdkafka_sends_it() -> None:
    frame = memoryview(
        bytes.fromhex("0012 0003 00000001 0007 72646b61666b61 00 0b 6c696272646b61666b61 06 322e302e32 00")
    )
    header = read_request_header(frame)
    assert header == RequestHeader(18, 3, 1, "rdkafka", 18)
    assert read_request(header, frame) == messages.ApiVersionsRequest(
        client_software_name="librdkafka", client_software_version="2.0.2"
    )


def test_the_client_id_of_a_flexible_header_has_a_plain_length() -> None:
    assert is_flexible(18, 3)
    frame = frame_of(write_request(1, "me", messages.ApiVersionsRequest(), 3))
    assert frame[:13] == bytes.fromhex("0012 0003 00000001 0002 6d65 00")


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = memoryview(bytes.fromhex("0003 000c 00000007 ffff 02 00 01 61 ff01 02 6263") + b"body")
    header = read_request_header(frame)
    assert header == RequestHeader(3, 12, 7, None, len(frame) - 4)


def test_a_response_to_api_versions_has_the_header_that_all_clients_read() -> None:
    frame = frame_of(write_response(5, messages.ApiVersionsResponse(error_code=35), 3))
    assert frame[:6] == bytes.fromhex("00000005 0023")
    flexible = frame_of(write_response(5, messages.MetadataResponse(throttle_time_ms=1), 12))
    assert flexible[:9] == bytes.fromhex("00000005 00 00000001")


@each_case(("key", "version"), [(0, 2), (0, 14), (4, 0), (999, 0), (-1, -1), (18, 0x7FFF)])
def test_a_version_that_is_not_known_is_an_error_with_what_an_answer_needs(key: int, version: int) -> None:
    frame = memoryview(key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + b"\0\0\0\x09\xff\xff")
    with pytest.raises(UnsupportedVersion, match=f"api {key} v{version} ") as caught:
        read_request_header(frame)
    assert (caught.value.api_key, caught.value.version, caught.value.correlation_id) == (key, version, 9)


def test_a_header_that_is_cut_off_is_malformed() -> None:
    frame = frame_of(write_request(1, "client", messages.MetadataRequest(), 12))
    body = read_request_header(frame).body
    for end in range(body):
        with pytest.raises(Malformed, match="RequestHeader"):
            read_request_header(frame[:end])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(3, 12), (3, 1), (18, 3), (0, 9)]),
            st.none() | st.sampled_from(["", "a", "b", "ab", "x" * 300]),
            st.integers(0, 1000),
            st.integers(0, 40),
        ),
        max_size=12,
    )
)
def test_a_reader_of_headers_finds_what_reading_each_anew_finds(
    requests: list[tuple[tuple[int, int], str | None, int, int]],
) -> None:
    reader = RequestHeaderReader()
    for (key, version), client_id, correlation_id, cut in requests:
        request = getattr(messages, apis()[key].request)()
        frame = frame_of(write_request(correlation_id, client_id, request, version))
        for part in (frame[:cut], frame):
            found: list[RequestHeader | str] = []
            for read in (reader.read, read_request_header):
                try:
                    found.append(read(part))
                except Malformed as error:
                    found.append(str(error))
            assert found[0] == found[1]


def test_records_are_slices_of_the_frame_and_chunks_of_their_own() -> None:
    class Slice:
        """Bytes that stay in a file."""

        def __len__(self) -> int:
            return 1000

    def response(*records: Any) -> messages.FetchResponse:
        cls = messages.FetchResponse
        partitions = [cls.PartitionData(partition_index=index, records=each) for index, each in enumerate(records)]
        return cls(responses=[cls.FetchableTopicResponse(topic="t", partitions=partitions)])

    in_file, in_memory = Slice(), memoryview(b"batch" * 20)
    for version in versions()[1]:
        chunks: list[Any] = write_response(1, response(in_file, None, b"", in_memory), version)
        assert chunks[1] is in_file
        assert chunks[3] is in_memory
        assert all(chunks)
        assert int.from_bytes(chunks[0][:4]) == sum(map(len, chunks)) - 4
    produce = messages.ProduceRequest
    data = produce.TopicProduceData(name="t", partition_data=[produce.PartitionProduceData(records=in_memory)])
    frame = frame_of(write_request(1, "me", produce(topic_data=[data]), 9))
    request = read_request(read_request_header(frame), frame)
    assert isinstance(request, produce)
    read = request.topic_data[0].partition_data[0].records
    assert read is not None
    assert read.obj is frame.obj
    assert read == in_memory


def test_fields_that_a_version_does_not_have_are_left_out() -> None:
    response = messages.ProduceResponse(throttle_time_ms=5, node_endpoints=[messages.ProduceResponse.NodeEndpoint()])
    read = read_message(messages.ProduceResponse, 9, write_message(response, 9))
    assert read == messages.ProduceResponse(throttle_time_ms=5)
    assert read_message(messages.ProduceResponse, 10, write_message(response, 10)) == response


def test_values_that_a_field_cannot_hold_are_errors_of_the_caller() -> None:
    for too_large in (
        messages.HeartbeatRequest(generation_id=1 << 31),
        messages.HeartbeatRequest(group_id="x" * 0x8000),
    ):
        with pytest.raises(struct.error):
            write_message(too_large, 0)
    with pytest.raises(ValueError, match="a string of 32768 bytes"):
        write_message(messages.HeartbeatRequest(group_id="x" * 0x8000), 4)
    with pytest.raises(AttributeError):
        write_message(messages.HeartbeatRequest(group_id=None), 0)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion):
        write_response(1, messages.HeartbeatResponse(), 5)
    with pytest.raises(ValueError, match="HeartbeatRequest has no version 5"):
        write_message(messages.HeartbeatRequest(), 5)
