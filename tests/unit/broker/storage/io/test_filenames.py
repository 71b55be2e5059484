"""Names in a log directory: how they are parsed, and which are not valid."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.io import filenames
from tests.support import each_case

_HEX = "0123456789abcdef0123456789abcdef"
_UNIQUE = uuid.UUID(hex=_HEX)
_TOPIC = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda topic: topic not in (".", ".."))


@each_case(
    ("name", "parsed"),
    [
        ("commits-0", ("commits", 0, "")),
        ("a-b-3", ("a-b", 3, "")),
        ("a.b-3", ("a.b", 3, "")),
        ("-3-4", ("-3", 4, "")),
        ("a--1", ("a-", 1, "")),
        ("a-2147483647", ("a", 2147483647, "")),
        (f"a.b-3.{_HEX}-delete", ("a.b", 3, "-delete")),
        (f"a-b-3.{_HEX}-stray", ("a-b", 3, "-stray")),
        (f"a-3.{_HEX}-future", ("a", 3, "-future")),
    ],
)
def test_a_partition_directory_is_split_at_its_last_dash(name: str, parsed: tuple[str, int, str]) -> None:
    assert filenames.parse_partition_directory(name) == parsed


@each_case(
    "name",
    [
        "",
        "commits",
        "-3",
        "commits-x",
        "commits-+1",
        "commits-٣",
        "commits-2147483648",
        "commits-3-delete",
        f"commits.{_HEX}-delete",
        f"commits-3{_HEX}-delete",
        f"com mits-3.{_HEX}-delete",
    ],
)
def test_other_names_are_no_partition_directories(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not|does not end in"):
        filenames.parse_partition_directory(name)


@given(_TOPIC, st.integers(0, 2**31 - 1))
def test_live_names_are_parsed_back(topic: str, partition: int) -> None:
    name = filenames.partition_directory_name(topic, partition)
    assert filenames.parse_partition_directory(name) == (topic, partition, "")


@given(_TOPIC, st.integers(0, 2**31 - 1), st.sampled_from([filenames.DELETE_MARKER, filenames.STRAY_MARKER]))
def test_marked_names_fit_a_file_name_and_are_parsed_back(topic: str, partition: int, marker: str) -> None:
    name = filenames.marked_directory_name(topic, partition, _UNIQUE, marker)
    assert len(name) <= 255
    parsed = filenames.parse_partition_directory(name)
    assert topic.startswith(parsed.topic)
    assert parsed[1:] == (partition, marker)


def test_the_longest_topic_gives_a_delete_name_of_exactly_255_characters() -> None:
    name = filenames.marked_directory_name("t" * 249, 7, _UNIQUE, filenames.DELETE_MARKER)
    assert len(name) == 255
    assert filenames.parse_partition_directory(name).topic == "t" * (255 - len(f"-7.{_HEX}-delete"))


@each_case(
    ("topic", "why"),
    [
        *((topic, None) for topic in ("a", "A.b_c-9", "t" * 249, "...", "__consumer_offsets", "-")),
        ("", "it is empty"),
        (".", "directories"),
        ("..", "directories"),
        ("t" * 250, "250 characters"),
        *((topic, "only letters") for topic in ("a/b", "a b", "ä", "a\n", "a\0")),
    ],
)
def test_topic_names_that_kafka_takes_are_taken_and_others_refused_with_the_reason(topic: str, why: str | None) -> None:
    found = filenames.why_invalid_topic(topic)
    assert found is None if why is None else why in (found or "")


def test_an_id_is_22_characters_of_url_safe_base64() -> None:
    assert filenames.new_id(uuid.UUID(int=101)) == "AAAAAAAAAAAAAAAAAAAAZQ"
    assert filenames.is_id("IVT1Seu3QjacxS7oBTKhDQ")
    assert filenames.is_id(filenames.new_id(uuid.uuid4()))


@each_case(
    "text",
    [
        "",
        "AAAAAAAAAAAAAAAAAAAAAA",  # all zero: Kafka's "no id"
        "IVT1Seu3QjacxS7oBTKhD",
        "IVT1Seu3QjacxS7oBTKhDQ==",
        "IVT1Seu3QjacxS7oBTKhDQx",
        "IVT1Seu3!QjacxS7oBTKhDQ",  # Python's decoder skips what is no base64
        "IVT1Seu3QjacxS7oBTKh\n",
        "IVT1Seu3QjacxS7oBTKh/+",
        "ÄVT1Seu3QjacxS7oBTKhDQ",
    ],
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert not filenames.is_id(text)


def test_partition_metadata_is_written_as_kafka_does_and_read_in_any_order_and_spacing() -> None:
    content = filenames.encode_partition_metadata("IVT1Seu3QjacxS7oBTKhDQ")
    assert content == b"version: 0\ntopic_id: IVT1Seu3QjacxS7oBTKhDQ"
    for read in (content, b"topic_id:   IVT1Seu3QjacxS7oBTKhDQ", b"topic_id: IVT1Seu3QjacxS7oBTKhDQ\nversion: 0\n"):
        assert filenames.decode_partition_metadata(read) == "IVT1Seu3QjacxS7oBTKhDQ"


@each_case(
    "content",
    [b"", b"version: 0\n", b"version: 0\ntopic_id: ", b"topic_id: AAAAAAAAAAAAAAAAAAAAAA", b"topic_id:x", b"\xff\xfe"],
)
def test_partition_metadata_without_an_id_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        filenames.decode_partition_metadata(content)
