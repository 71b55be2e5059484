"""Records of ``__consumer_offsets``: as Kafka wrote them, and read as Kafka itself reads them."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seglog_broker.coordinators import topic
from seglog_broker.coordinators.groups.classic_members import tombstone
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets, Retention
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.membership import Limits
from seglog_broker.coordinators.groups.records import KINDS, GroupReplay, encode_commit, encode_tombstone
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.state_machine import Now, Outbox, UnknownRecordError, decode_record, encode_record
from seglog_broker.coordinators.topic import KEPT_CHARACTERS_MAX, PARTITIONS_KEPT, partition_of
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import Message, messages, write_message
from seglog_protocol.record_batch import iter_batches, parse_header
from seglog_protocol.records import decode_records
from seglog_protocol.steps import finished
from tests.support import each_case, shared_data
from tests.unit.broker.coordinators.groups.consumer_coordinator import Topics, replayed, restore
from tests.unit.broker.storage.log.transactions import Batch

# Written by Apache Kafka 4.3.1.
KEY = bytes.fromhex("0001000d636c61737369632d67726f757000066f726465727300000001")
VALUE = bytes.fromhex("00040000000000000032ffffffff01000001a1fc16b279010010a25a94c46c8f498aa36f8daab53b21ab")
COMMITTED = CommittedOffset(50, -1, "", 1795230708345, topic_id="olqUxGyPSYqjb42qtTshqw")


def test_a_commit_is_written_as_kafka_writes_it() -> None:
    assert encode_commit("classic-group", ("orders", 1), COMMITTED) == (KEY, VALUE)


def test_a_commit_is_read_as_it_was_written_and_a_later_record_wins() -> None:
    replay = replayed([(KEY, VALUE)])
    assert replay.offsets.of("classic-group") == {("orders", 1): COMMITTED}
    later = encode_commit("classic-group", ("orders", 1), COMMITTED._replace(offset=7))
    assert replayed([(KEY, VALUE), later]).offsets.of("classic-group")["orders", 1].offset == 7
    assert "classic-group" not in replayed([(KEY, VALUE), encode_tombstone("classic-group", ("orders", 1))]).offsets


@each_case("version", [0, 1, 2, 3, 4])
def test_commits_of_older_kafkas_are_read(version: int) -> None:
    value = messages.OffsetCommitValue(offset=3, leader_epoch=2, metadata="é", commit_timestamp=5, expire_timestamp=9)
    written = version.to_bytes(2, "big") + write_message(value, version)
    (committed,) = replayed([(KEY, written)]).offsets.of("classic-group").values()
    assert committed == CommittedOffset(3, 2 if version >= 3 else -1, "é", 5, 9 if version == 1 else -1, "id-of-orders")


@each_case(
    ("key", "value"),
    [
        (None, b"v"),
        (b"", b"v"),
        (b"\x00", b"v"),
        (b"\x00\x63" + KEY[2:], VALUE),
        (KEY, b"\x00\x63" + VALUE[2:]),
        (KEY, b"\xff\xff" + VALUE[2:]),
        (KEY[:-1], VALUE),
        (KEY, VALUE[:9]),
        (KEY, b"\x00"),
    ],
)
def test_what_is_not_known_is_skipped_and_counted(key: bytes | None, value: bytes) -> None:
    replay = replayed([(key, value), (KEY, VALUE)])
    assert sum(replay.unknown.values()) == 1
    assert replay.offsets.of("classic-group") == {("orders", 1): COMMITTED}
    with pytest.raises(UnknownRecordError):
        finished(decode_record(KINDS, key, value, {}))


def test_a_group_is_deleted_by_a_record_without_a_value() -> None:
    assert finished(decode_record(KINDS, *finished(encode_record(tombstone("g"))), {})).value is None


@each_case(
    ("group", "partition"), [("classic-group", 34), ("", 0), ("polygenelubricants", 0), ("grüße-😀", 27), ("a", 47)]
)
def test_a_group_has_the_partition_that_kafka_gives_it(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


def test_partitions_are_kept_of_so_many_keys_that_are_not_long() -> None:
    kept = topic._kept.cache_info
    topic._kept.cache_clear()
    assert partition_of("g" * (KEPT_CHARACTERS_MAX + 1), 50) == topic._found("g" * (KEPT_CHARACTERS_MAX + 1), 50)
    assert kept().currsize == 0
    for number in range(PARTITIONS_KEPT + 1):
        partition_of(f"{number:>{KEPT_CHARACTERS_MAX}}", 50)
    assert kept().currsize == PARTITIONS_KEPT


# --- A directory that Kafka wrote -------------------------------------------------------------------------------------


Golden = tuple[list[bytes], dict[str, Any]]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The batches of Kafka's own log of groups, and its answers about these."""
    facts = json.loads(shared_data("kafka-golden", "groups.json").read_text())
    directory = tmp_path_factory.mktemp("groups")
    with tarfile.open(shared_data("kafka-golden", "groups.tar.gz")) as archive:
        archive.extractall(directory, filter="data")
    (path,) = Path(directory).rglob("__consumer_offsets-0/00000000000000000000.log")
    return [bytes(batch) for _, batch in iter_batches(path.read_bytes())], facts


def replay_of(batches: Sequence[bytes]) -> GroupReplay:
    replay = GroupReplay({})
    for batch in batches:
        header = parse_header(batch)
        finished(replay.read(header, decode_records(header, batch)))
    return replay


def test_the_offsets_are_those_that_kafka_itself_finds(golden: Golden) -> None:
    batches, facts = golden
    replay = replay_of(batches)
    wanted = {
        name.removesuffix(" after leaving"): {
            (topic, partition): (offset, metadata or "")
            for topic, partition, offset, metadata, *_ in group["committed"]
        }
        for name, group in facts["groups"].items()
    }
    found = {
        group: {
            key: (committed.offset, committed.metadata.rstrip("\0"))
            for key, committed in replay.offsets.of(group).items()
        }
        for group in replay.offsets
    }
    assert found == {group: offsets for group, offsets in wanted.items() if offsets}


def test_the_classic_group_is_empty_with_its_last_generation(golden: Golden) -> None:
    batches, _ = golden
    value = replay_of(batches).classic["classic-group"].value
    assert isinstance(value, messages.GroupMetadataValue)
    assert (value.protocol_type, value.members, value.leader) == ("consumer", [], None)
    assert value.generation > 0


def test_the_group_of_the_consumer_protocol_is_what_it_was_for_kafka(golden: Golden) -> None:
    """With its member, and after that has left: it is both at some point of the log."""
    batches, facts = golden
    replay = replay_of(batches)
    topics = Topics()
    topics.make("orders", 3, id_bytes(replay.offsets.of("consumer-group")["orders", 0].topic_id))

    def at(end: int) -> ConsumerGroupDescription:
        """The group after so many batches."""
        group = ConsumerGroup("consumer-group", Outbox(), Limits, lambda: "", topics)
        restore(group, replay_of(batches[:end]), Now(0, 0))
        return group.describe(Now(0, 0))

    described = [at(end) for end in range(len(batches) + 1)]
    seen = {(group.state.upper(), group.assignor, *_members(group)) for group in described}
    for name in ("consumer-group", "consumer-group after leaving"):
        wanted = facts["groups"][name]
        assert (wanted["state"], wanted["assignor"], *map(_hashable, wanted["members"])) in seen
    assert (described[-1].state, described[-1].group_epoch) == ("Empty", 3)


def _members(group: ConsumerGroupDescription) -> list[Any]:
    """Client ids and what they have, as in Kafka's answers."""
    return [
        _hashable([member.client_id, [(one.topic, number) for one in member.assigned for number in one.partitions]])
        for member in group.members
    ]


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


# --- When offsets are forgotten ---------------------------------------------------------------------------------------


@each_case(
    ("retention", "committed", "expires"),
    [
        (Retention(100, is_empty=True, empty_since_ms=None, read_topics=None), (5, -1), 105),
        (Retention(100, is_empty=True, empty_since_ms=50, read_topics=None), (5, -1), 150),
        (Retention(100, is_empty=True, empty_since_ms=50, read_topics=None), (70, -1), 170),
        (Retention(100, is_empty=True, empty_since_ms=50, read_topics=None), (5, 60), 60),
        (Retention(100, is_empty=False, empty_since_ms=None, read_topics=None), (5, -1), None),
        (Retention(100, is_empty=False, empty_since_ms=None, read_topics={"t"}), (5, -1), None),
        (Retention(100, is_empty=False, empty_since_ms=None, read_topics={"u"}), (5, -1), 105),
    ],
)
def test_offsets_expire_by_kafkas_rules(retention: Retention, committed: tuple[int, int], expires: int | None) -> None:
    committed_ms, expires_ms = committed
    assert retention.expires_ms("t", CommittedOffset(1, -1, "", committed_ms, expires_ms)) == expires


def test_a_key_that_comes_again_is_not_read_again() -> None:
    known: dict[bytes, Message] = {}
    first = finished(decode_record(KINDS, KEY, VALUE, known))
    assert known == {KEY: first.key}
    assert finished(decode_record(KINDS, KEY, None, known)).key is first.key
    assert finished(decode_record(KINDS, KEY, VALUE, known)) == finished(decode_record(KINDS, KEY, VALUE, {})) == first
    with pytest.raises(UnknownRecordError):
        finished(decode_record(KINDS, KEY[:5], VALUE, known))
    assert list(known) == [KEY]


# --- Transactions -----------------------------------------------------------------------------------------------------


def in_transactions(*batches: Batch | tuple[int, tuple[bytes, bytes | None]]) -> CommittedOffsets:
    """What a log adds up to whose batches are end markers, or (producer id or -1, record)."""
    replay = GroupReplay({"t": "id"})
    for item in batches:
        if isinstance(item, Batch):
            written = item.encoded()
        else:
            producer_id, (key, value) = item
            written = encode_batch(
                [(0, key, value, ())], producer_id=producer_id, producer_epoch=0, transactional=producer_id >= 0
            )
        header = parse_header(written)
        finished(replay.read(header, decode_records(header, written)))
    return replay.offsets


PLACE = ("orders", 1)
FORGOTTEN = encode_tombstone("classic-group", PLACE)


@each_case(
    ("batches", "is_unstable", "is_committed"),
    [
        ([(7, (KEY, VALUE))], True, False),
        ([(-1, (KEY, VALUE)), (7, (KEY, VALUE))], True, True),
        ([(7, (KEY, VALUE)), (-1, (KEY, VALUE))], True, True),
        ([(7, (KEY, VALUE)), Batch(1, 1, 7, "COMMIT")], False, True),
        ([(7, (KEY, VALUE)), Batch(1, 1, 7, "ABORT")], False, False),
        ([(7, (KEY, VALUE)), Batch(1, 1, 8, "COMMIT")], True, False),
        ([(7, (KEY, VALUE)), (-1, FORGOTTEN)], False, False),
        ([(7, (KEY, VALUE)), (-1, FORGOTTEN), Batch(1, 1, 7, "COMMIT")], False, False),
    ],
)
def test_offsets_of_an_open_transaction_are_unstable(batches: list[Any], is_unstable: bool, is_committed: bool) -> None:
    """What an open transaction has committed is unstable until its marker or until it is deleted."""
    offsets = in_transactions(*batches)
    assert offsets.is_unstable("classic-group", PLACE) == is_unstable
    assert not offsets.is_unstable("other", PLACE)
    assert offsets.of("classic-group") == ({PLACE: COMMITTED} if is_committed else {})
    offsets.put("classic-group", PLACE, COMMITTED)
    assert offsets.is_unstable("classic-group", PLACE) == is_unstable, "a commit of a member does not end it"
    offsets.drop("classic-group", PLACE)
    assert not offsets.is_unstable("classic-group", PLACE)


def at(offset: int) -> tuple[bytes, bytes]:
    return encode_commit("classic-group", PLACE, COMMITTED._replace(offset=offset))


@each_case(
    ("batches", "counts"),
    [
        ([(7, at(1)), (7, at(2)), Batch(1, 1, 7, "COMMIT")], 2),
        ([(7, at(1)), (-1, at(2)), Batch(1, 1, 7, "COMMIT")], 2),
        ([(7, at(1)), (-1, at(2)), Batch(1, 1, 7, "ABORT")], 2),
        ([(7, at(1)), (-1, at(2)), (7, at(3)), Batch(1, 1, 7, "COMMIT")], 3),
        ([(-1, at(1)), (7, at(2)), Batch(1, 1, 7, "ABORT")], 1),
        ([(7, at(1)), (8, at(2)), Batch(1, 1, 7, "COMMIT"), Batch(2, 1, 8, "COMMIT")], 2),
        ([(7, at(1)), (8, at(2)), Batch(1, 1, 8, "COMMIT"), Batch(2, 1, 7, "COMMIT")], 2),
        ([(7, at(1)), (8, at(2)), Batch(1, 1, 8, "ABORT"), Batch(2, 1, 7, "COMMIT")], 1),
        ([(7, at(1)), (8, at(2)), (7, at(3)), Batch(1, 1, 7, "COMMIT"), Batch(2, 1, 8, "COMMIT")], 3),
        ([(7, at(1)), (-1, FORGOTTEN), (7, at(2)), Batch(1, 1, 7, "COMMIT")], 2),
    ],
)
def test_of_several_commits_the_last_one_in_the_log_counts(batches: list[Any], counts: int) -> None:
    """Whenever its transaction is committed, as in Kafka: compaction keeps the last one."""
    offsets = in_transactions(*batches)
    assert offsets.of("classic-group")[PLACE].offset == counts
    assert not offsets.is_unstable("classic-group", PLACE)


def test_the_bytes_of_what_is_pending_are_counted_until_it_ends() -> None:
    empty = CommittedOffsets().size
    offsets = in_transactions((7, at(1)), (7, at(2)), (8, at(3)))
    pending = offsets.size
    assert pending > empty
    for producer_id in (7, 8):
        assert list(offsets.end_transaction(producer_id, "classic-group", is_commit=False)) == [None]
    assert offsets.size < pending
    offsets.end("classic-group")
    assert offsets.size == empty


def test_a_group_does_not_end_before_its_transactions() -> None:
    offsets = in_transactions((7, at(1)))
    offsets.end("classic-group")
    assert list(offsets) == ["classic-group"]
    list(offsets.end_transaction(7, "classic-group", is_commit=False))
    offsets.end("classic-group")
    assert list(offsets) == []


def test_records_of_groups_are_skipped_in_a_transaction() -> None:
    replay = GroupReplay({})
    key, value = finished(encode_record(tombstone("g")))
    written = encode_batch([(0, key, value, ())], producer_id=7, producer_epoch=0, transactional=True)
    header = parse_header(written)
    finished(replay.read(header, decode_records(header, written)))
    assert list(replay.unknown.values()) == [1]
