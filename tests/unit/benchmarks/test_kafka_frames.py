"""Hand-made requests to Kafka and its replies: bytes that kafka-python 3.0.12 made and that Kafka 4.3.1 answered."""

import pytest

from benchmarks.peers import kafka_frames as frames

HEADER = "00000007000562656e6368"  # correlation id 7, client "bench"

PRODUCED = bytes.fromhex(
    "00000031000000070002037431020000000000000000000000000002ffffffffffffffff0000000000000000010000000000000000"
)
PRODUCED_UNKNOWN = bytes.fromhex(
    "00000033000000070002056e6f706502000000000003ffffffffffffffffffffffffffffffffffffffffffffffff010000000000000000"
)
FETCHED = bytes.fromhex(
    "000000ee0000000700000000000000000000000000010002743100000001000000000000000000000000009600000000000000960000000000"
    "000000ffffffffffffffff000000aa"
) + bytes(170)
LISTED = bytes.fromhex(
    "0000002e0000000700000000000000010002743100000001000000000000000001a2017b5633000000000000000000000000"
)
LISTED_END = bytes.fromhex(
    "0000002e0000000700000000000000010002743100000001000000000000ffffffffffffffff000000000000009600000000"
)
LISTED_NONE = bytes.fromhex(
    "0000002e0000000700000000000000010002743100000001000000000000ffffffffffffffffffffffffffffffffffffffff"
)
CREATED = bytes.fromhex("00000014000000070000000000000001000274320000ffff")
CREATED_ALREADY = bytes.fromhex(
    "0000002e000000070000000000000001000274310024001a546f706963202774312720616c7265616479206578697374732e"
)
ALTERED = bytes.fromhex("000000150000000700000000000000010000ffff0200027431")
ALTERED_WRONGLY = bytes.fromhex(
    "000000740000000700000000000000010028005f496e76616c69642076616c7565206e6f6e73656e736520666f7220636f6e66696775726174"
    "696f6e20636c65616e75702e706f6c6963793a20537472696e67206d757374206265206f6e65206f663a20636f6d706163742c2064656c6574"
    "650200027431"
)
DELETED = bytes.fromhex("00000012000000070000000000000001000274310000")
DELETED_ALREADY = bytes.fromhex("00000012000000070000000000000001000274310003")


def test_a_produce_request_is_what_another_client_sends() -> None:
    expected = f"000000ed00000009{HEADER}0000000100007530020374310200000000c901" + "01" * 200 + "000000"
    assert frames.produce_frame("t1", b"\x01" * 200).hex() == expected


def test_a_batch_of_any_size_is_announced_by_one_more_than_its_size() -> None:
    for size, announced in ((0, "01"), (126, "7f"), (127, "8001"), (16_383, "808001"), (1 << 20, "818040")):
        frame = frames.produce_frame("t1", b"b" * size)
        assert frame.endswith(bytes.fromhex(announced) + b"b" * size + b"\0\0\0")
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_a_fetch_request_is_what_another_client_sends() -> None:
    expected = (
        f"000000560001000b{HEADER}ffffffff0000000000000001001000000000000000ffffffff000000010002743100000001"
        "00000000ffffffff000000000000007bffffffffffffffff00100000000000000000"
    )
    assert frames.fetch_frame("t1", 123, partition_bytes=1024 * 1024).hex() == expected


def test_a_list_offsets_request_is_what_another_client_sends() -> None:
    expected = f"0000003000020005{HEADER}ffffffff0000000001000274310000000100000000ffffffff0000018bcfe56800"
    assert frames.time_frame("t1", 1_700_000_000_000).hex() == expected


def test_requests_about_topics_are_what_another_client_sends() -> None:
    assert frames.create_topic_frame("t1", {"flush.messages": "1"}).hex() == (
        f"0000003d00130004{HEADER}00000001000274310000000100010000000000000001000e666c7573682e6d65737361676573000131"
        "0000753000"
    )
    assert frames.delete_topic_frame("t1").hex() == f"0000001b00140003{HEADER}00000001000274310000" + "7530"
    assert frames.alter_topic_frame("t1", {"cleanup.policy": "compact"}).hex() == (
        f"00000037002c0000{HEADER}00000001020002743100000001000e636c65616e75702e706f6c696379000007636f6d7061637400"
    )


def test_replies_say_where_records_are() -> None:
    assert frames.produced(PRODUCED, "t1") == 2
    assert frames.fetched(FETCHED, "t1") == 170
    assert frames.listed(LISTED, "t1") == (1_795_321_189_939, 0)
    assert frames.listed(LISTED_END, "t1") == (-1, 150)
    assert frames.listed(LISTED_NONE, "t1") == (-1, -1)


def test_errors_in_replies_are_raised_with_kafkas_number() -> None:
    with pytest.raises(frames.KafkaError, match="Produce was answered with error 3") as unknown:
        frames.produced(PRODUCED_UNKNOWN, "nope")
    assert unknown.value.code in frames.NOT_READY
    with pytest.raises(frames.KafkaError, match="CreateTopics was answered with error 36"):
        frames.created(CREATED_ALREADY, "t1")
    with pytest.raises(frames.KafkaError, match="IncrementalAlterConfigs was answered with error 40"):
        frames.altered(ALTERED_WRONGLY)


def test_a_topic_made_altered_or_gone_is_no_error() -> None:
    frames.created(CREATED, "t2")
    frames.altered(ALTERED)
    frames.deleted(DELETED, "t1")
    frames.deleted(DELETED_ALREADY, "t1")
