"""Checkpoints, epochs, snapshots and small text files: shown as stored; impossible content is damage."""

import json

from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.inspect.dump.small_files import BYTES_MAX
from seglog_broker.inspect.facts import (
    AbortedFound,
    CheckpointEntry,
    DamagedOffsets,
    EpochFound,
    Fact,
    FileFound,
    ProducerFound,
    Property,
    StateFound,
    TopicFound,
)
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.steps import finished
from tests.logs import TOPIC_ID
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import create, damage, facts, notes, only
from tests.unit.protocol.test_transaction_files import EMPTY_SNAPSHOT, SNAPSHOT, TXN_INDEX


def told(name: str, content: bytes) -> list[Fact]:
    """The facts of a file of that name, after its heading."""
    fs = ForgetfulFileSystem()
    fs.load({f"/d/{name}": content})
    first, *rest = facts(fs, f"/d/{name}")
    assert isinstance(first, FileFound)
    assert (first.path, first.size) == (f"/d/{name}", len(content))
    return rest


def test_offset_checkpoints_are_shown_entry_by_entry() -> None:
    found = told("recovery-point-offset-checkpoint", b"0\n2\nb-c 12 7\na 0 5\n")
    assert found == [CheckpointEntry("a", 0, 5), CheckpointEntry("b-c", 12, 7)]
    assert told("cleaner-offset-checkpoint", b"") == []


@each_case(
    ("content", "reason"),
    [
        (b"1\n0\n", "line 1 is '1', not version 0"),
        (b"0\n1\na 0\n", "line 3 has 2 fields, not 3"),
        (b"0\n2\na 0 5\n", "line 2 announces '2' entries, there are 1"),
        (b"\xff\xff", "it is not UTF-8 text"),
    ],
)
def test_a_malformed_checkpoint_is_damage(content: bytes, reason: str) -> None:
    found = told("log-start-offset-checkpoint", content)
    assert damage(found) == [(None, None, f"{reason}; a start takes it for empty")]


def test_epochs_are_shown_as_stored_and_must_rise() -> None:
    assert told("leader-epoch-checkpoint", b"0\n2\n0 0\n3 17\n") == [EpochFound(0, 0), EpochFound(3, 17)]
    found = told("leader-epoch-checkpoint", b"0\n2\n3 17\n2 20\n")
    assert only(found, EpochFound) == [EpochFound(3, 17), EpochFound(2, 20)]
    assert damage(found) == [(None, None, "epoch 2 at offset 20 does not follow the entry before it")]
    assert len(damage(told("leader-epoch-checkpoint", b"0\n1\nx 20\n"))) == 1


def test_snapshots_of_kafka_are_shown() -> None:
    one, two = told("00000000000000000300.snapshot", SNAPSHOT)
    assert one == ProducerFound(1, 2, 2**31 - 2, 1, 2, 3, 1700000000000, 3, 100)
    assert two == ProducerFound(11, 12, -1, -1, -1, 0, 123456, 13, None)
    assert told("00000000000000000300.snapshot", EMPTY_SNAPSHOT) == []
    (spoilt,) = damage(told("00000000000000000300.snapshot", SNAPSHOT[:-1]))
    assert spoilt == (2, len(SNAPSHOT) - 1, "its checksum does not match")


def test_the_transaction_index_of_kafka_is_shown() -> None:
    assert told("00000000000000000000.txnindex", TXN_INDEX) == [AbortedFound(0, 1, 2, 3, 4)]
    found = told("00000000000000000003.txnindex", TXN_INDEX * 2 + b"\0")
    assert damage(found) == [
        (34, 68, "entry 1: its last offset 3 is not above 3"),
        (68, 69, "half an entry"),
    ]
    assert damage(told("00000000000000000000.txnindex", b"\1" + TXN_INDEX[1:])) == [
        (0, 34, "entry 0: its version is 256, not 0")
    ]


def test_the_small_text_files_are_shown() -> None:
    metadata = f"version: 0\ntopic_id: {TOPIC_ID}".encode()
    assert told("partition.metadata", metadata) == [Property("topic_id", TOPIC_ID)]
    assert len(damage(told("partition.metadata", b"version: 0\n"))) == 1
    assert told("meta.properties", b"#\nversion=1\n") == [Property("version", "1")]
    marker = told(".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":13}')
    assert marker[:2] == [Property("version", "0"), Property("brokerEpoch", "13")]
    assert damage(told(".kafka_cleanshutdown", b"anything")) == []
    assert told("seglog-format", b"1\n") == [Property("format", "1")]
    assert notes(told("seglog-format", b"9\n")) == ["format 9 is newer than 1; this version of seglog refuses it"]
    assert len(damage(told("seglog-format", b"one\n"))) == 1


def test_the_topic_registry_is_shown() -> None:
    fs = ForgetfulFileSystem()
    registry = TopicRegistry(fs, "/seglog-topics.json")
    registry.topics["b"] = Topic("b", TOPIC_ID, 3, {"retention.ms": "-1"}, ["a note"])
    registry.deleting = ["AAAAAAAAAAAAAAAAAAAAZQ"]
    found = told("seglog-topics.json", registry.content())
    assert only(found, TopicFound) == [TopicFound("b", TOPIC_ID, 3, {"retention.ms": "-1"}, ["a note"])]
    assert len(notes(found)) == 1
    assert len(damage(told("seglog-topics.json", b'{"version": 1, "topics": [{}]}'))) == 1


def test_settings_made_at_run_time_are_shown() -> None:
    groups = {"g": {"consumer.session.timeout.ms": "50000"}}
    settings = DynamicConfig({"": {"num.partitions": "3"}, "1": {"log.retention.ms": "-1"}}, groups)
    assert told("seglog-configs.json", encode_dynamic_configs(settings)) == [
        Property("all brokers: num.partitions", "3"),
        Property("broker 1: log.retention.ms", "-1"),
        Property("group g: consumer.session.timeout.ms", "50000"),
    ]
    assert len(damage(told("seglog-configs.json", b'{"version": 1, "brokers": {"1": {"nope": "3"}}}'))) == 1


def test_accounts_are_shown_without_what_a_password_can_be_guessed_from() -> None:
    made = Credential("SCRAM-SHA-256", 4096, b"salty", b"S" * 32, b"V" * 32)
    store = AccountStore(ForgetfulFileSystem(), "/seglog-accounts.json")
    content = store.content(finished(store.planned([Change("alice", made.mechanism, made)])))
    assert told("seglog-accounts.json", content) == [Property("account alice", "SCRAM-SHA-256 with 4,096 iterations")]
    assert len(damage(told("seglog-accounts.json", b'{"version": 1}'))) == 1


def test_the_state_of_a_partition_is_shown_and_its_recorded_damage_is_damage() -> None:
    fs = ForgetfulFileSystem()
    fs.make_directory("/p-0")
    state = PartitionState(last_append_ms=5, damaged=[DamagedRange(3, 7, 0, 300, 700)])
    state.save(fs, "/p-0")
    found = facts(fs, "/p-0/seglog-partition.json")
    assert only(found, StateFound) == [StateFound(None, None, 5, None, 0)]
    assert only(found, DamagedOffsets) == [DamagedOffsets(3, 7, 0, 300, 700, "damaged")]
    assert damage(found) == [(None, None, "offsets 3 to 6 are recorded as damaged, at 300 in segment 0")]
    PartitionState(read_only="a failed fsync").save(fs, "/p-0")
    assert [reason for _, _, reason in damage(facts(fs, "/p-0/seglog-partition.json"))] == [
        "the partition is marked read-only: a failed fsync"
    ]
    PartitionState().save(fs, "/p-0")
    assert damage(facts(fs, "/p-0/seglog-partition.json")) == []


@each_case("content", [b"", b"[]", b"{", json.dumps({"damaged": [1]}).encode()])
def test_a_state_that_makes_no_sense_is_damage(content: bytes) -> None:
    [(_, _, reason)] = damage(told("seglog-partition.json", content))
    assert reason.startswith("it cannot be understood (")
    assert reason.endswith("); a start takes it for absent")


def test_a_small_file_that_is_huge_is_named_and_not_read() -> None:
    fs = ForgetfulFileSystem()
    path = "/00000000000000000300.snapshot"
    create(fs, path)
    file = fs.open(path, writable=True)
    file.truncate(BYTES_MAX + 1)
    file.close()
    ((_, _, reason),) = damage(facts(fs, path))
    assert reason.endswith("it was not read")
