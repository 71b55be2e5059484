"""Any bytes are a message or Malformed, with the field; and nothing large is made of a few bytes."""

import contextlib
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pytest

from seglog_protocol.kafka import (
    Malformed,
    messages,
    read_message,
    read_request,
    read_request_header,
    write_message,
    write_request,
)
from seglog_protocol.kafka.definitions import definition
from seglog_protocol.kafka.structs import Message
from seglog_protocol.kafka.varints import varint
from tests.support import each_case, soak_scaled, soak_seed
from tests.unit.protocol.kafka.instances import MESSAGES, VERSIONS, Instances
from tests.unit.protocol.kafka.mutations import HOSTILE, mutated


def written(name: str, version: int, seed: int = 0) -> bytes:
    return write_message(Instances(seed).message(name, version), version)


def read(name: str, version: int, data: bytes) -> Message:
    cls: type[Message] = getattr(messages, name)
    return read_message(cls, version, data)


def malformed(name: str, version: int, data: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        read(name, version, data)
    return caught.value


def fields_of(name: str) -> set[str]:
    """The fields of a message, those in its structs with dots."""
    described = definition(name)

    def walk(fields: Any, before: str) -> Iterator[str]:
        for field in fields:
            yield before + field.name
            struct = described.structs.get(field.type.removeprefix("[]"))
            if struct is not None:
                yield from walk(struct.fields, f"{before}{field.name}.")

    return {"", *walk(described.struct.fields, "")}


# --- any bytes --------------------------------------------------------------------------------------------------------


@each_case("name", MESSAGES)
def test_a_message_that_is_cut_off_is_malformed(name: str) -> None:
    fields = fields_of(name)
    random = Random(0)
    for version in definition(name).versions:
        data = written(name, version)
        ends = range(len(data))
        for end in random.sample(ends, k=min(len(data), 30)):
            error = malformed(name, version, data[:end])
            assert (error.message, error.version) == (name, version)
            assert error.field in fields


@each_case("name", MESSAGES)
def test_mutated_bytes_are_a_message_or_malformed(name: str) -> None:
    random = Random(name)
    for version in definition(name).versions:
        for _ in range(20):
            check(name, version, mutated(random, written(name, version, random.randrange(100))))


@pytest.mark.soak
def test_mutated_bytes_are_a_message_or_malformed_at_length() -> None:
    seed, count = soak_seed(), soak_scaled(400_000)
    print(f"{count} mutated messages, seed {seed}")
    random = Random(seed)
    for _ in range(count):
        name, version = random.choice(VERSIONS)
        check(name, version, mutated(random, written(name, version, random.randrange(1000))))


def check(name: str, version: int, data: bytes) -> None:
    """Whatever is read of ``data`` can be written again."""
    try:
        message = read(name, version, data)
    except Malformed:
        return
    again = write_message(message, version)
    assert write_message(read(name, version, again), version) == again


def test_a_malformed_frame_is_not_kept_until_garbage_is_collected() -> None:
    frame = memoryview(b"".join(write_request(1, "me", messages.ListGroupsRequest(), 5))[4:-1])
    kept = weakref.ref(frame)
    gc.disable()
    try:
        with contextlib.suppress(Malformed):
            read_request(read_request_header(frame), frame)
        del frame
        assert kept() is None
    finally:
        gc.enable()


def test_hostile_counts_and_lengths_allocate_nothing() -> None:
    random = Random(1)
    frames = []
    for name, version in VERSIONS:
        data = written(name, version, 3)
        for _ in range(5):
            at, hostile = random.randrange(len(data) + 1), random.choice(HOSTILE)
            frames.append((name, version, data[:at] + hostile + data[at:]))
    for frame in frames:
        check(*frame)  # what is generated for them stays
    tracemalloc.start()
    try:
        for name, version, data in frames:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with contextlib.suppress(Malformed):
                read(name, version, data)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 20_000 + 300 * len(data), (name, version, data)
    finally:
        tracemalloc.stop()


# --- what is refused, and why -----------------------------------------------------------------------------------------

LIST_GROUPS: Final = "ListGroupsRequest"
"""From version 3 on: the array ``states_filter`` of strings; from version 5 on, another one, ``types_filter``."""


@each_case(
    ("data", "field", "reason"),
    [
        ("", "states_filter", "the frame ends here"),
        ("00", "states_filter", "null, which it cannot be"),
        ("ff", "states_filter", "the frame ends here"),
        ("05 0000", "states_filter", "a count of 4, with 2 bytes left"),
        ("ffffffff0f", "states_filter", "a count of 4294967294, with 0 bytes left"),
        ("ffffffff10", "states_filter", "a varint of more than 32 bits"),
        ("ffffffffff01", "states_filter", "a varint of more than 32 bits"),
        ("02 00", "states_filter", "null, which it cannot be"),
        ("02 05 616263", "states_filter", "a length of 4, with 3 bytes left"),
        ("02 03 c328", "states_filter", "not UTF-8"),
        ("01 01", "", "the frame ends here"),
        ("01 01 01", "", "a count of 1, with 0 bytes left"),
        ("01 01 01 0581", "", "the frame ends here"),
        ("01 01 03 0500", "", "a count of 3, with 2 bytes left"),
        ("01 01 01 0505 00", "", "a length of 5, with 1 bytes left"),
    ],
)
def test_the_error_names_the_field_and_the_reason(data: str, field: str, reason: str) -> None:
    error = malformed(LIST_GROUPS, 5, bytes.fromhex(data))
    assert (error.field, error.reason) == (field, reason)
    place = f"{LIST_GROUPS} v5, {field}" if field else f"{LIST_GROUPS} v5"
    assert str(error) == f"{place}: {reason}"


def test_the_field_in_which_a_frame_ends_is_named() -> None:
    """The field is the one in which the frame ends even if several are read together."""
    data = write_message(messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    assert data == bytes.fromhex("02 67 00000001 02 6d 00 00")
    fields = ["group_id", *["group_id"], *["generation_id"] * 4, "member_id", "member_id", "group_instance_id", ""]
    assert [malformed("HeartbeatRequest", 4, data[:end]).field for end in range(len(data))] == fields


def test_a_string_is_no_longer_than_all_versions_can_write() -> None:
    longest = messages.HeartbeatRequest(group_id="g" * 0x7FFF)
    for version in longest.VERSIONS:
        assert read("HeartbeatRequest", version, write_message(longest, version)) == longest
    data = varint(0x8000 + 1) + b"g" * 0x8000 + bytes(7)
    error = malformed("HeartbeatRequest", 4, data)
    assert (error.field, error.reason) == ("group_id", "a string of 32768 bytes, which may have 32767")


def test_an_array_has_a_limit() -> None:
    many = messages.ListGroupsRequest(states_filter=[""] * 20_000)
    assert read(LIST_GROUPS, 5, write_message(many, 5)) == many
    many.states_filter.append("")
    error = malformed(LIST_GROUPS, 5, write_message(many, 5))
    assert (error.field, error.reason) == ("states_filter", "a count of 20001, which may be 20000")
    cls = messages.MetadataRequest
    for version in cls.VERSIONS:
        request = cls(topics=[cls.MetadataRequestTopic(name="")] * 20_001)
        assert malformed("MetadataRequest", version, write_message(request, version)).field == "topics"
    elected = messages.ElectLeadersRequest.TopicPartitions(topic="t", partitions=list(range(20_001)))
    leaders = messages.ElectLeadersRequest(topic_partitions=[elected])
    assert malformed("ElectLeadersRequest", 2, write_message(leaders, 2)).field == "topic_partitions.partitions"


def test_a_field_in_a_struct_is_named_with_those_around_it() -> None:
    cls = messages.ProduceRequest
    partition = cls.PartitionProduceData(index=1, records=memoryview(b"batch"))
    request = cls(topic_data=[cls.TopicProduceData(name="t", partition_data=[partition])])
    for version, end in ((3, -2), (9, -5)):
        error = malformed("ProduceRequest", version, write_message(request, version)[:end])
        assert error.field == "topic_data.partition_data.records"


def test_null_is_refused_in_the_versions_that_do_not_have_it() -> None:
    read("MetadataRequest", 1, bytes.fromhex("ffffffff"))
    error = malformed("MetadataRequest", 0, bytes.fromhex("ffffffff"))
    assert (error.field, error.reason) == ("topics", "null, which it cannot be")


# --- what is ignored --------------------------------------------------------------------------------------------------


@each_case("name", MESSAGES)
def test_what_follows_a_message_is_ignored(name: str) -> None:
    for version in definition(name).versions:
        message = Instances(1).message(name, version)
        assert read(name, version, write_message(message, version) + b"\xff trailing") == message


@each_case("name", [name for name in MESSAGES if definition(name).flexible])
def test_tagged_fields_that_are_not_known_are_skipped(name: str) -> None:
    described = definition(name)
    for version in described.versions:
        if version in described.flexible:
            plain = write_message(getattr(messages, name)(), version)
            assert plain.endswith(b"\0")  # the number of tagged fields
            for size in (0, 1, 200):
                tags = b"\x02" + tagged(900, bytes(size)) + tagged((1 << 32) - 1, b"x")
                assert read(name, version, plain[:-1] + tags) == getattr(messages, name)()
            many = varint(150) + tagged(1000, b"") * 150
            assert read(name, version, plain[:-1] + many) == getattr(messages, name)()


def tagged(tag: int, data: bytes) -> bytes:
    return varint(tag) + varint(len(data)) + data


def test_unknown_tagged_fields_in_any_order() -> None:
    """Unknown tagged fields stand between known ones in any order and of two the last counts."""
    cls = messages.FetchRequest
    plain = write_message(cls(), 15)
    state = cls.ReplicaState(replica_id=3, replica_epoch=4)
    known = tagged(1, bytes.fromhex("00000003 0000000000000004 00"))
    tags = [known, tagged(7, b"?"), tagged(0, b"\x02a"), tagged(0, b"\x03bc")]
    assert read("FetchRequest", 15, plain[:-1] + b"\x04" + b"".join(tags)) == cls(cluster_id="bc", replica_state=state)
    assert write_message(cls(cluster_id="bc", replica_state=state), 15) == plain[:-1] + b"\x02" + tags[3] + known


@each_case("size", [0, 1, 3, 4, 200])
def test_a_known_tagged_field_has_the_size_that_it_says(size: int) -> None:
    plain = write_message(messages.FetchRequest(), 15)
    read("FetchRequest", 15, plain[:-1] + b"\x01" + tagged(0, b"\x02a"))
    error = malformed("FetchRequest", 15, plain[:-1] + b"\x01\x00" + varint(size) + b"\x02a")
    assert error.field in {"cluster_id", ""}
