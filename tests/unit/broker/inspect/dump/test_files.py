"""Files shown one by one: what is valid, what is damage, and entries that say otherwise than the log."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.dump.small_files import BYTES_MAX
from seglog_broker.inspect.facts import (
    AbortedFound,
    Batch,
    CheckpointEntry,
    DamagedOffsets,
    EpochFound,
    Fact,
    FileFound,
    IndexTotals,
    LogTotals,
    OffsetEntryFound,
    Property,
    RecordFound,
    StateFound,
    TimeEntryFound,
    TopicFound,
)
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.storage.directory.acls import encode_acls
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import BatchHeader, rewrite_offset_and_epoch, seal_batch
from seglog_protocol.segment_files import encode_offset_entry, encode_time_entry
from seglog_protocol.steps import finished
from tests.logs import TOPIC_ID, LogOnDisk, add_bytes, batch, batch_of_size, cut_file, flip_bit
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    create,
    damage,
    facts,
    notes,
    only,
    overwrite,
    small_log,
)
from tests.unit.protocol.test_transaction_files import TXN_INDEX


def test_records_come_after_their_batch() -> None:
    disk = LogOnDisk()
    for codec in Codec:
        disk.append_batch(encode_batch([(5, b"k", b"v", (("h", None),)), (6, None, None, ())], codec=codec))
    found = facts(disk.fs, LOG, records=True)
    assert [type(fact) for fact in found[1:-1]] == [Batch, RecordFound, RecordFound] * len(Codec)
    assert only(found, RecordFound)[:2] == [
        RecordFound(0, 5, b"k", b"v", (("h", None),)),
        RecordFound(1, 6, None, None, ()),
    ]


def test_a_batch_with_a_wrong_checksum_is_shown_and_named() -> None:
    disk = small_log()
    flip_bit(disk.fs, LOG, 380)
    found = facts(disk.fs, LOG)
    batches = only(found, Batch)
    assert [(b.position, b.crc_ok) for b in batches] == [(n * 100, n != 3) for n in range(10)]
    assert damage(found) == [(300, 400, "its checksum does not match")]
    assert found.index(batches[3]) + 1 == found.index(next(fact for fact in found if fact.kind == "damage"))
    assert only(found, LogTotals) == [LogTotals(LOG, 9, 9, 10, 1_700_000_009_000, 100)]


@each_case(
    ("hurt", "found"),
    [
        (
            lambda fs: overwrite(fs, LOG, 300, b"\xab" * 150),
            (300, 500, "no batch begins here: its magic is -85, not 2"),
        ),
        (
            lambda fs: cut_file(fs, LOG, 920),
            (900, 920, "20 bytes, fewer than the 61 of a batch header; no valid batch follows"),
        ),
        (
            lambda fs: cut_file(fs, LOG, 999),
            (900, 999, "the header announces a batch of 100 bytes, only 99 are there; no valid batch follows"),
        ),
    ],
)
def test_invalid_bytes_and_a_torn_tail_are_damage_and_skipped(
    hurt: Callable[[FileSystem], None], found: tuple[int, int, str]
) -> None:
    disk = small_log()
    hurt(disk.fs)
    told = facts(disk.fs, LOG)
    assert damage(told) == [found]
    whole = [position for position in range(0, 1000, 100) if not found[0] <= position < found[1]]
    assert [one.position for one in only(told, Batch)] == whole


def test_preallocated_space_is_named_as_such() -> None:
    disk = small_log()
    add_bytes(disk.fs, LOG, bytes(3_000_000))
    (found,) = damage(facts(disk.fs, LOG))
    assert found[:2] == (1000, 3_001_000)
    assert found[2].startswith("only zeros")


def test_a_log_that_grows_meanwhile_is_no_damage() -> None:
    disk = LogOnDisk()
    for _ in range(3):
        disk.append_batch(batch_of_size(100))
    on_its_way = bytearray(batch_of_size(100))
    rewrite_offset_and_epoch(on_its_way, 0, 3, 0)
    add_bytes(disk.fs, LOG, bytes(on_its_way[:80]))
    walk = facts_of(disk.fs, LOG, DumpOptions())
    found = [next(walk)]
    add_bytes(disk.fs, LOG, bytes(on_its_way[80:]))
    found += walk
    assert damage(found) == []
    assert len(only(found, Batch)) == 3
    assert notes(found) == ["it grew from 380 to 400 bytes while it was read: a broker is writing to it"]


@pytest.mark.parametrize("position", [7, 3])
def test_an_offset_that_was_changed_is_damage_though_no_checksum_covers_it(position: int) -> None:
    """Set to 1 or raised by 2^32: reported once, and the batches after it are not affected."""
    disk = small_log()
    overwrite(disk.fs, LOG, 500 + position, b"\1")
    found = facts(disk.fs, LOG)
    assert len(only(found, Batch)) == 10
    assert [where[:2] for where in damage(found)] == [(500, 600)]


def test_an_offset_below_the_segments_is_damage() -> None:
    disk = small_log(3)
    moved = LOG.replace("00.log", "02.log")
    disk.fs.rename(LOG, moved)
    assert [reason for _, _, reason in damage(facts(disk.fs, moved))] == [
        "its base offset 0 lies below the segment's, 2",
        "its base offset 1 lies below the segment's, 2",
    ]


def test_records_that_cannot_be_opened_are_damage_of_their_batch_only() -> None:
    disk = LogOnDisk()
    disk.append(b"good")
    spoilt = seal_batch(BatchHeader(1, 0, 0, 2, 0, int(Codec.ZSTD), 0, 5, 5, -1, -1, -1, 1), b"no such stream")
    add_bytes(disk.fs, LOG, spoilt)
    after = bytearray(batch(b"after"))
    rewrite_offset_and_epoch(after, 0, 2, 0)
    add_bytes(disk.fs, LOG, bytes(after))
    assert damage(facts(disk.fs, LOG)) == []
    found = facts(disk.fs, LOG, records=True)
    assert [record.value for record in only(found, RecordFound)] == [b"good", b"after"]
    ((start, _, reason),) = damage(found)
    assert start == only(found, Batch)[1].position
    assert reason.startswith("its records cannot be read: ")


def test_a_bomb_is_refused_within_bounds() -> None:
    disk = LogOnDisk(TopicConfig())
    add_bytes(disk.fs, LOG, encode_batch([(1, None, bytes(65 << 20), ())], codec=Codec.ZSTD))
    ((_, _, reason),) = damage(facts(disk.fs, LOG, records=True))
    assert "67108864 bytes" in reason


@given(st.data())
def test_every_byte_of_a_damaged_log_is_shown_exactly_once(data: st.DataObject) -> None:
    """Batches and damaged ranges cover the file without a hole, and all unchanged batches are shown."""
    disk = small_log(6)
    position = data.draw(st.integers(0, 599))
    spoilt = data.draw(st.binary(min_size=1, max_size=min(150, 600 - position)))
    before = read_file(disk.fs, LOG)
    overwrite(disk.fs, LOG, position, spoilt)
    now = read_file(disk.fs, LOG)
    touched = {at // 100 for at in range(600) if before[at] != now[at]}
    found = facts(disk.fs, LOG)
    good = {b.position: b.position + b.size for b in only(found, Batch) if b.crc_ok}
    bad = {start: end for start, end, reason in damage(found) if start is not None and start not in good}
    stretches = sorted((good | bad).items())
    assert [start for start, _ in stretches] == [0, *(end for _, end in stretches[:-1])]
    assert stretches[-1][1] == 600
    if not any(before[at] != now[at] and at % 100 < 21 for at in range(600)):  # what no checksum covers
        assert {100 * number for number in range(6) if number not in touched} <= set(good)


# --- ``.index`` and ``.timeindex``: entries, padding, and the comparison with the log ---------------------------------


T0 = 1_700_000_000_000


def test_without_verification_the_log_is_not_opened() -> None:
    disk = small_log()
    disk.fs.unlink(LOG)
    assert len(only(facts(disk.fs, OFFSET_INDEX), OffsetEntryFound)) == 4
    found = facts(disk.fs, OFFSET_INDEX, verify=True)
    assert notes(found) == ["its entries were not compared with the log: there is no .log beside it"]
    assert damage(found) == []


@each_case(
    ("path", "entry", "reason"),
    [
        (OFFSET_INDEX, encode_offset_entry(4, 450), "no batch begins at 450"),
        (OFFSET_INDEX, encode_offset_entry(4, 1000), "no batch begins at 1000, the log ends at 1000"),
        (OFFSET_INDEX, encode_offset_entry(3, 400), "the batch at 400 has offsets 4 to 4"),
        (OFFSET_INDEX, encode_offset_entry(2, 400), "its offset is not above the one before"),
        (OFFSET_INDEX, encode_offset_entry(4, 200), "its position is not above the one before"),
        (OFFSET_INDEX, encode_offset_entry(-4, 400), "it is negative"),
        (TIME_INDEX, encode_time_entry(T0 + 4000, 44), "the log has no batch with offset 44"),
        (TIME_INDEX, encode_time_entry(T0 + 3000, 4), f"the log has the later timestamp {T0 + 4000} up to offset 4"),
        (
            TIME_INDEX,
            encode_time_entry(T0 + 5000, 4),
            f"the largest timestamp of the batch with offset 4 is {T0 + 4000}",
        ),
        (TIME_INDEX, encode_time_entry(T0 + 2000, 4), "its timestamp is not above the one before"),
        (TIME_INDEX, encode_time_entry(T0 + 4000, 1), "its offset is below the one before"),
        (TIME_INDEX, encode_time_entry(-5, 4), "it is negative"),
    ],
)
def test_an_entry_that_says_otherwise_than_the_log_is_damage(path: str, entry: bytes, reason: str) -> None:
    disk, size = small_log(), len(entry)
    overwrite(disk.fs, path, size, entry)
    assert damage(facts(disk.fs, path, verify=True))[0] == (size, 2 * size, f"entry 1: {reason}")


def test_an_entry_for_several_batches_as_old_kafka_wrote_them_is_no_damage() -> None:
    disk = small_log()
    create(disk.fs, OFFSET_INDEX, encode_offset_entry(5, 200) + encode_offset_entry(9, 600))
    found = facts(disk.fs, OFFSET_INDEX, verify=True)
    assert damage(found) == []
    assert [entry.problem for entry in only(found, OffsetEntryFound)] == [
        "it names the end of several batches, as Kafka before 4.0 wrote it"
    ] * 2


def test_entries_beyond_damage_in_the_log_are_still_compared() -> None:
    disk = small_log()
    overwrite(disk.fs, LOG, 300, b"\xab" * 100)
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True)) == []
    overwrite(disk.fs, LOG, 400, b"\xab" * 100)
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True)) == [(8, 16, "entry 1: no batch begins at 400")]


@pytest.mark.parametrize("path", [OFFSET_INDEX, TIME_INDEX])
def test_zeros_behind_the_entries_are_padding_and_no_damage(path: str) -> None:
    disk = small_log()
    add_bytes(disk.fs, path, bytes(120_000))
    found = facts(disk.fs, path, verify=True)
    assert damage(found) == []
    (totals,) = only(found, IndexTotals)
    assert (totals.entries, totals.padding_bytes) == (4 if path == OFFSET_INDEX else 5, 120_000)
    assert notes(found)[0].startswith("120000 bytes of zeros follow the entries")


def test_zeros_between_entries_are_damage_told_once() -> None:
    disk = small_log()
    entries = read_file(disk.fs, OFFSET_INDEX)
    create(disk.fs, OFFSET_INDEX, entries[:8] + bytes(80_000) + entries[8:])
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True))[:1] == [(8, 65536, "only zeros, and entries follow")]


def test_an_only_entry_of_zeros_is_an_entry() -> None:
    """The last time index entry of a segment with one batch at offset 0, whose record has timestamp 0."""
    disk = LogOnDisk()
    disk.append_batch(batch_of_size(100, timestamp=0))
    disk.log.close()
    assert read_file(disk.fs, TIME_INDEX) == bytes(12)
    found = facts(disk.fs, TIME_INDEX, verify=True)
    assert only(found, TimeEntryFound) == [TimeEntryFound(0, 0, 0)]
    assert damage(found) == []


@pytest.mark.parametrize(("path", "entry"), [(OFFSET_INDEX, (12, 1200)), (TIME_INDEX, (T0 + 12_000, 12))])
def test_entries_of_batches_that_were_appended_meanwhile_are_no_damage(path: str, entry: tuple[int, int]) -> None:
    disk = small_log(11)
    encode: Callable[[int, int], bytes] = encode_offset_entry if path == OFFSET_INDEX else encode_time_entry
    cut_file(disk.fs, LOG, 900)
    add_bytes(disk.fs, path, encode(*entry))
    walk = facts_of(disk.fs, path, DumpOptions(verify=True))
    found = [next(walk), next(walk)]  # the log is open, its size is known
    add_bytes(disk.fs, LOG, b"more")
    found += walk
    assert damage(found) == []


def test_no_bit_of_an_offset_index_can_turn_unseen() -> None:
    disk = small_log()
    for position in range(disk.fs.stat(OFFSET_INDEX).size):
        flip_bit(disk.fs, OFFSET_INDEX, position)
        found = facts(disk.fs, OFFSET_INDEX, verify=True)
        assert damage(found) or any(entry.problem for entry in only(found, OffsetEntryFound))
        flip_bit(disk.fs, OFFSET_INDEX, position)


# --- Checkpoints, epochs, snapshots and small text files: shown as stored; impossible content is damage ---------------


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
    settings = settings.with_clients({(("client-id", None), ("user", "u")): {"producer_byte_rate": 9.0}})
    assert told("seglog-configs.json", encode_dynamic_configs(settings)) == [
        Property("all brokers: num.partitions", "3"),
        Property("broker 1: log.retention.ms", "-1"),
        Property("group g: consumer.session.timeout.ms", "50000"),
        Property("user u, default client-id: producer_byte_rate", "9"),
    ]
    assert len(damage(told("seglog-configs.json", b'{"version": 1, "brokers": {"1": {"nope": "3"}}}'))) == 1


def test_accounts_are_shown_without_what_a_password_can_be_guessed_from() -> None:
    made = Credential("SCRAM-SHA-256", 4096, b"salty", b"S" * 32, b"V" * 32)
    store = AccountStore(ForgetfulFileSystem(), "/seglog-accounts.json")
    content = store.content(finished(store.planned([Change("alice", made.mechanism, made)])))
    assert told("seglog-accounts.json", content) == [Property("account alice", "SCRAM-SHA-256 with 4,096 iterations")]
    assert len(damage(told("seglog-accounts.json", b'{"version": 1}'))) == 1


def test_acls_are_shown_as_lines() -> None:
    rule = Rule(Kind.TOPIC, PatternType.PREFIXED, "orders", "User:ann", "*", Operation.READ, Permission.ALLOW)
    assert told("seglog-acls.json", encode_acls([rule])) == [Property("ACL", str(rule))]
    assert len(damage(told("seglog-acls.json", b'{"version": 1}'))) == 1


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
