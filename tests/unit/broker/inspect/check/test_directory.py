"""Checks of a whole log directory, also of one that a real Kafka left, and directories that are refused."""

import json
from collections.abc import Callable

import pytest

from seglog_broker.inspect.check.directory import RefusedError
from seglog_broker.inspect.findings import Code, PartitionCounts, Remaining, Severity
from seglog_broker.inspect.readable import readable
from seglog_broker.storage.directory.topic_admin import PendingCreation
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.small_files import seal
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.checkpoint_files import encode_offsets
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch
from seglog_protocol.segment_files import TIME_ENTRY, encode_time_entry
from tests.logs import add_bytes, append_one, batch, cut_file
from tests.support import each_case
from tests.unit.broker.inspect.check import support
from tests.unit.broker.inspect.check.support import (
    DATA,
    PARTITION,
    SMALL,
    append,
    check,
    codes,
    faults,
    findings,
    left,
    opened,
    path_of,
    repairs,
    totals,
    written,
)
from tests.unit.broker.inspect.dump.support import create, overwrite
from tests.unit.broker.storage.steps import create_topic

Fs = ForgetfulFileSystem


def _offsets(**points: int) -> bytes:
    return encode_offsets({("commits", 0): points["commits"]})


# --- Sound ------------------------------------------------------------------------------------------------------------


def test_a_directory_stopped_in_order_is_sound() -> None:
    fs = written(covered=True)
    told = check(fs, deep=True)
    counts, last = told
    assert counts == PartitionCounts(PARTITION, 3, 2, 23, 23, 2300, 0, 23)
    assert last == totals(told)
    assert totals(told).is_sound
    assert (totals(told).partitions, totals(told).bytes, totals(told).covered) == (1, 2300, 2)
    assert fs.open_files == []


@pytest.mark.parametrize("interval", [0, 150, 4096])
def test_the_interval_of_the_broker_need_not_be_known(interval: int) -> None:
    fs = written(config={"segment.bytes": "1024"})
    assert findings(check(fs, keys={"log.index.interval.bytes": str(interval)})) == []


def test_an_interval_that_changed_while_a_segment_was_active_is_reported() -> None:
    fs = written(6, config={"segment.bytes": "1024", "index.interval.bytes": "150"})
    logs = opened(fs)
    log = logs.logs["commits", 0]
    topic = logs.registry.topics["commits"]
    log.active.indexes.writer.interval = 350
    for number in range(4):
        append(log, number)
    logs.close()
    assert topic.notes == []
    assert {code for _, code in codes(check(fs))} == {Code.INDEX_WRONG}
    assert totals(check(fs, repair=True)).is_sound


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_a_directory_in_use_is_refused_and_one_that_was_left_is_not() -> None:
    fs = written()
    logs = opened(fs)
    with pytest.raises(RefusedError, match="in use"):
        check(fs)
    logs.close()
    assert totals(check(fs)).is_sound


@pytest.mark.parametrize(
    ("path", "why"),
    [("/nowhere", "/nowhere does not exist"), (PARTITION, "is one partition"), (path_of(0), "is a file")],
)
def test_a_path_that_is_not_a_log_directory_is_refused(path: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = written()
    monkeypatch.setattr(support, "DATA", path)
    with pytest.raises(RefusedError, match=why):
        check(fs)


def test_a_foreign_directory_and_one_of_a_newer_format_are_refused() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/photos/cat.jpg": b"?"})
    with pytest.raises(RefusedError, match="is not a log directory"):
        check(fs)
    fs = written()
    create(fs, f"{DATA}/seglog-format", b"2\n")
    with pytest.raises(RefusedError, match="has format '2'"):
        check(fs)
    assert f"{DATA}/photos" not in fs.snapshot()


_FOREIGN = {
    "of other software": {"/data/dbus-1/session.conf": b"<busconfig/>", "/data/polkit-1/rules.d/1.rules": b"//"},
    "with other properties": {"/data/meta.properties": b"version=7\nname=etc\n"},
    "with properties of no one": {"/data/meta.properties": b"cluster.id=abc\n"},
}


@pytest.mark.parametrize("files", _FOREIGN.values(), ids=list(_FOREIGN))
def test_names_that_others_give_too_make_no_log_directory_and_nothing_is_written(files: dict[str, bytes]) -> None:
    fs = ForgetfulFileSystem()
    fs.load(files)
    before = fs.snapshot()
    for repair in (False, True):
        with pytest.raises(RefusedError, match="is not a log directory"):
            check(fs, repair=repair)
    assert fs.snapshot() == before


@each_case(
    "files",
    [
        {"/data/meta.properties": b"#\nversion=1\ncluster.id=abc\nnode.id=1\n"},
        {"/data/meta.properties": b"version=0\nbroker.id=1\n"},
        {"/data/recovery-point-offset-checkpoint": b"0\n0\n"},
        {"/data/commits-0/00000000000000000000.log": b""},
    ],
)
def test_one_file_of_kafka_makes_a_log_directory(files: dict[str, bytes]) -> None:
    fs = ForgetfulFileSystem()
    fs.load(files)
    totals(check(fs))


# --- Findings ---------------------------------------------------------------------------------------------------------


def _forget_commits(fs: Fs) -> None:
    """Remove the topic from the registry."""
    create(fs, f"{DATA}/seglog-topics.json", b'{"version": 1, "topics": [], "deleting": []}')


@each_case(
    ("hurt", "severity", "code"),
    [
        (lambda fs: create(fs, f"{DATA}/seglog-topics.json", b"{"), Severity.DAMAGE, Code.REGISTRY_MALFORMED),
        (lambda fs: fs.unlink(f"{DATA}/seglog-topics.json"), Severity.DAMAGE, Code.REGISTRY_MISSING),
        (lambda fs: create(fs, f"{DATA}/meta.properties", b"version=7\n"), Severity.DAMAGE, Code.IDENTITY_WRONG),
        (lambda fs: fs.unlink(f"{DATA}/meta.properties"), Severity.DAMAGE, Code.IDENTITY_MISSING),
        (lambda fs: create(fs, f"{DATA}/seglog-configs.json", b"{"), Severity.DAMAGE, Code.CONFIGS_MALFORMED),
        (lambda fs: create(fs, f"{DATA}/seglog-accounts.json", b"{"), Severity.DAMAGE, Code.ACCOUNTS_MALFORMED),
        (lambda fs: create(fs, f"{DATA}/seglog-acls.json", b"{"), Severity.DAMAGE, Code.ACLS_MALFORMED),
        (lambda fs: create(fs, f"{DATA}/seglog-producer-ids.json", b"{"), Severity.DAMAGE, Code.PRODUCER_IDS_MALFORMED),
        (lambda fs: create(fs, f"{DATA}/seglog-format", b"0\n"), Severity.DERIVED, Code.FORMAT_WRONG),
        (
            lambda fs: create(fs, f"{PARTITION}/leader-epoch-checkpoint", b"0\n1\n0 1\n"),
            Severity.DERIVED,
            Code.EPOCHS_WRONG,
        ),
        (lambda fs: fs.make_directory(f"{DATA}/photos"), Severity.DAMAGE, Code.FOREIGN_DIRECTORY),
        (lambda fs: fs.make_directory(f"{DATA}/x-0.{'0' * 32}-stray"), Severity.NOTE, Code.PARTITION_ASIDE),
        (lambda fs: fs.make_directory(f"{DATA}/x-0.{'0' * 32}-delete"), Severity.NOTE, Code.LEFT_OVER),
        (lambda fs: fs.remove_tree(PARTITION), Severity.DAMAGE, Code.PARTITION_GONE),
        (lambda fs: create(fs, f"{DATA}/notes.txt"), Severity.NOTE, Code.UNKNOWN_FILE),
        (lambda fs: create(fs, f"{PARTITION}/notes.txt"), Severity.NOTE, Code.UNKNOWN_FILE),
        (
            lambda fs: create(fs, f"{DATA}/replication-offset-checkpoint", _offsets(commits=99)),
            Severity.DERIVED,
            Code.CHECKPOINT_WRONG,
        ),
        (
            lambda fs: create(fs, f"{DATA}/log-start-offset-checkpoint", _offsets(commits=99)),
            Severity.DERIVED,
            Code.CHECKPOINT_WRONG,
        ),
        (
            lambda fs: create(fs, f"{DATA}/recovery-point-offset-checkpoint", _offsets(commits=20)),
            Severity.DERIVED,
            Code.CHECKPOINT_WRONG,
        ),
        (
            lambda fs: create(fs, f"{PARTITION}/partition.metadata", b"version: 0\ntopic_id: IVT1Seu3QjacxS7oBTKhDQ"),
            Severity.DAMAGE,
            Code.TOPIC_ID_WRONG,
        ),
        (lambda fs: create(fs, path_of(0, ".txnindex"), bytes(35)), Severity.DERIVED, Code.TXN_INDEX_WRONG),
        (lambda fs: create(fs, f"{PARTITION}/leader-epoch-checkpoint"), Severity.NOTE, Code.EPOCHS_EMPTY),
        (lambda fs: overwrite(fs, path_of(10), 115, b"\x07"), Severity.DAMAGE, Code.EPOCH_WRONG),
        (lambda fs: add_bytes(fs, path_of(20), b"?"), Severity.DAMAGE, Code.TAIL_DAMAGED),
        (
            lambda fs: [fs.unlink(path_of(0, suffix)) for suffix in (".log", ".index", ".timeindex")],
            Severity.DAMAGE,
            Code.FIRST_SEGMENT_GONE,
        ),
    ],
)
def test_each_kind_of_error_gets_its_own_code(hurt: Callable[[Fs], object], severity: Severity, code: Code) -> None:
    fs = written()
    hurt(fs)
    told = check(fs)
    assert codes(told) == [(severity, code)]
    assert totals(told).findings[severity] == 1
    assert totals(told).is_sound == (severity == Severity.NOTE)
    again = check(fs, repair=True)
    assert [finding.code for finding in left(again)] == [f.code for f in faults(check(fs))]


def test_a_topic_that_only_the_registry_has_lost_is_noted() -> None:
    fs = written()
    _forget_commits(fs)
    assert codes(check(fs)) == [
        (Severity.NOTE, Code.KAFKA_WAS_HERE),
        (Severity.NOTE, Code.PARTITION_UNKNOWN),
    ]


@pytest.mark.parametrize(
    ("name", "severity", "code"),
    [
        ("replication-offset-checkpoint", Severity.NOTE, Code.CHECKPOINT_BEYOND_END),
        ("log-start-offset-checkpoint", Severity.DERIVED, Code.LOG_START_WRONG),
    ],
)
def test_a_checkpoint_beyond_the_end_after_a_kill_is_reported(name: str, severity: Severity, code: Code) -> None:
    fs = written(clean=False)
    create(fs, f"{DATA}/{name}", _offsets(commits=99))
    [finding] = findings(check(fs))
    assert (finding.severity, finding.code, finding.path) == (severity, code, f"{DATA}/{name}")
    assert left(check(fs, repair=True)) == faults(check(fs)) == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_first_segment_is_reported_until_a_repair_begins_the_log_after_it(clean: bool) -> None:
    fs = written(clean=False)
    logs = opened(fs)
    logs.logs["commits", 0].truncate_before(1)
    if clean:
        logs.close()
    else:
        logs.abandon()
    fs.unlink(path_of(0))
    gone = [finding for finding in faults(check(fs)) if finding.code == Code.FIRST_SEGMENT_GONE]
    assert [(one.severity, one.start_offset, one.end_offset) for one in gone] == [(Severity.DAMAGE, 1, 10)]
    logs = opened(fs)  # a start says so, and forgets nothing
    assert [problem for problem in logs.report.problems if "the records 1 to 9 are missing" in problem]
    logs.close() if clean else logs.abandon()
    assert Code.FIRST_SEGMENT_GONE in {finding.code for finding in faults(check(fs))}
    check(fs, repair=True)
    assert Code.FIRST_SEGMENT_GONE not in {finding.code for finding in findings(check(fs))}
    log = opened(fs).logs["commits", 0]
    assert (log.log_start_offset, log.state.log_start_reason, log.state.damaged) == (10, "missing", [])


def test_a_missing_segment_is_found_once() -> None:
    """A segment that is gone is found once and its other files are named in one note."""
    fs = written(covered=True)
    fs.unlink(path_of(0))
    gone, left_over = findings(check(fs))
    assert (gone.code, left_over.code, left_over.path) == (Code.FIRST_SEGMENT_GONE, Code.LEFT_OVER, path_of(0))
    assert left_over.what == "is gone, and left .checksum, .index, .timeindex, which a start removes"


@pytest.mark.parametrize(("clean", "gone"), [(True, (0, 10, 20)), (False, (0, 10, 20)), (False, (20,))])
def test_segments_whose_logs_are_gone_are_found(clean: bool, gone: tuple[int, ...]) -> None:
    fs = written(clean=clean)
    for base in gone:
        fs.unlink(path_of(base))
    for told in (check(fs), check(fs, deep=True), check(fs, repair=True)):
        paths = {finding.path for finding in faults(told) if finding.code == Code.SEGMENTS_GONE}
        assert path_of(20) in paths if gone == (20,) else paths


def test_a_partition_that_was_never_made_is_no_loss() -> None:
    fs = written(0)
    fs.remove_tree(PARTITION)
    create(fs, f"{DATA}/recovery-point-offset-checkpoint")
    assert codes(check(fs)) == [(Severity.DAMAGE, Code.PARTITION_GONE)]
    registry = TopicRegistry(fs, f"{DATA}/seglog-topics.json")
    registry.load()
    PendingCreation({registry.topics["commits"].id: 0}).save(fs, DATA)
    assert codes(check(fs)) == [(Severity.NOTE, Code.PARTITION_NOT_MADE)]


def test_records_that_cannot_be_read_are_found_only_by_opening_the_batches() -> None:
    fs = written(0)
    logs = opened(fs)
    log = logs.logs["commits", 0]
    encoded = bytearray(batch(b"value"))
    encoded[-8:] = b"\xff" * 8
    append_one(log, seal_batch(parse_header(encoded), bytes(encoded[HEADER_SIZE:])))
    logs.close()
    assert findings(check(fs)) == []
    (finding,) = findings(check(fs, deep=True))
    assert (finding.severity, finding.code, finding.start_offset) == (Severity.DAMAGE, Code.RECORDS_UNREADABLE, 0)


def test_an_unreadable_file_stops_its_partition_only() -> None:
    """A file that cannot be read stops its partition only and nothing is repaired in it."""
    fs = written(3)
    logs = opened(fs)
    create_topic(logs, "another", 1, dict(SMALL))
    logs.close()
    fs.inject(Fault("pread", path_of(0), 5, sticky=True))
    before = fs.snapshot()
    told = check(fs, repair=True)
    assert [finding.code for finding in left(told)] == [Code.UNREADABLE]
    assert left(told)[0].path == path_of(0)
    assert totals(told).partitions == 2
    assert read_file(fs, f"{PARTITION}/partition.metadata") == before[f"{PARTITION}/partition.metadata"]


def test_a_repair_removes_left_over_files() -> None:
    fs = written()
    fs.make_directory(f"{DATA}/x-0.{'0' * 32}-delete")
    for path in (f"{DATA}/meta.properties.tmp", path_of(0, ".log.deleted"), path_of(99, ".timeindex")):
        create(fs, path)
    told = check(fs)
    assert codes(told) == [(Severity.NOTE, Code.LEFT_OVER)] * 4
    assert totals(told).is_sound
    fixed = check(fs, repair=True)
    assert sum(done.what == "removed" for done in repairs(fixed)) == 4
    assert findings(check(fs)) == []


def test_a_repair_removes_files_of_an_interrupted_deletion() -> None:
    fs = written()
    registry = json.loads(read_file(fs, f"{DATA}/seglog-topics.json"))
    registry["deleting"] = [registry["topics"].pop()["id"]]
    create(fs, f"{DATA}/seglog-topics.json", seal({name: value for name, value in registry.items() if name != "crc"}))
    assert codes(check(fs)) == [(Severity.NOTE, Code.LEFT_OVER)]
    check(fs, repair=True)
    assert not fs.exists(PARTITION)
    assert findings(check(fs)) == []


# --- Lines ------------------------------------------------------------------------------------------------------------


def test_each_line_has_the_place_the_finding_and_the_advice() -> None:
    fs = written(covered=True)
    overwrite(fs, path_of(10), 480, b"\0")
    cut_file(fs, path_of(0, ".index"), 5)
    told = check(fs)
    assert list(readable(told)) == [
        f"WRONG: {path_of(0, '.index')}, bytes 0 to 4 (5 B): half an entry [index-wrong]",
        f"  {Code.INDEX_WRONG.remedy}",
        f"DAMAGED: {path_of(10)}, bytes 400 to 499 (100 B), offset 14: its checksum does not match [batch-damaged]",
        f"  {Code.BATCH_DAMAGED.remedy}",
        "/data/commits-0: offsets 0 to 22, 22 batches in 3 segments, 2.2 KiB, checksums for 2 of 2 closed",
        "",
        "1 partition, 3 segments, 22 batches, 22 records, 2.2 KiB read",
        "/data is not sound: damaged in 1 place, 1 file to rebuild.",
    ]


def test_findings_that_a_repair_could_not_remove_are_reported_again() -> None:
    fs = written()
    overwrite(fs, path_of(10), 115, b"\x07")
    told = check(fs, repair=True)
    assert len([one for one in told if isinstance(one, Remaining)]) == 1
    lines = list(readable(told))
    assert lines[2].startswith("repaired: ")
    assert sum(line.startswith("STILL DAMAGED: ") for line in lines) == 1
    assert lines[-1] == "/data is not sound: damaged in 1 place."


def test_a_topic_deleted_only_by_name_stays_deleted() -> None:
    """A topic whose deletion only a directory's name shows is no loss, and stays deleted after a repair."""
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "kept", 1, {})
    topic = create_topic(directory, "gone", 3, {})
    append(directory.logs["gone", 1], 0)
    fs.limit_free_bytes(0)
    directory.topics.record_deletion(topic)
    directory.abandon()
    fs.limit_free_bytes(None)
    for repair in (False, True, False):
        told = check(fs, repair=repair)
        assert totals(told).is_sound
        assert [finding.code for finding in findings(told) if finding.code != Code.LEFT_OVER] == []
    again = opened(fs)
    assert set(again.registry.topics) == {"kept"}
    assert not again.topics.unrecorded


# --- As an ordinary Kafka leaves it -----------------------------------------------------------------------------------


_ALLOCATED = 4096
"""Kafka gives an index ten megabytes in advance; the rule is the same for fewer."""


def _of_kafka(fs: ForgetfulFileSystem) -> ForgetfulFileSystem:
    """Remove the files that only seglog writes."""
    for path in (f"{DATA}/seglog-topics.json", f"{DATA}/seglog-format", f"{PARTITION}/seglog-partition.json"):
        if fs.exists(path):
            fs.unlink(path)
    if fs.exists(f"{DATA}/.kafka_cleanshutdown"):
        create(fs, f"{DATA}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":47}')
    assert faults(check(fs)) == []
    return fs


def _largest_so_far(fs: ForgetfulFileSystem, base: int) -> list[bytes]:
    """The time index entries that Kafka writes if it is stopped after each batch of a segment, without repetitions."""
    log = read_file(fs, path_of(base))
    entries: list[bytes] = []
    largest, position = -1, 0
    while position < len(log):
        header = parse_header(log, position)
        if header.max_timestamp > largest:
            largest = header.max_timestamp
            entries.append(encode_time_entry(largest, header.last_offset - base))
        position += header.size
    return entries


@pytest.mark.parametrize("interval", ["4096", "150", "0"])
def test_a_time_index_keeps_the_closing_entry_of_each_clean_stop(interval: str) -> None:
    fs = _of_kafka(written(9, config={"segment.bytes": "1024"}))
    entries = _largest_so_far(fs, 0)
    assert len(entries) > 3
    for kept in (entries, entries[1:], [entries[0], entries[-1]]):
        create(fs, path_of(0, ".timeindex"), b"".join(kept))
        assert faults(check(fs, keys={"log.index.interval.bytes": interval})) == []


def test_entries_between_those_of_the_interval_are_checked_too() -> None:
    fs = _of_kafka(written(9, config={"segment.bytes": "1024"}))
    entries = _largest_so_far(fs, 0)
    timestamp, offset = TIME_ENTRY.unpack(entries[1])
    for wrong in (
        [entries[0], encode_time_entry(timestamp, offset + 1), entries[-1]],
        [entries[0], encode_time_entry(timestamp + 1, offset), entries[-1]],
        [entries[1], entries[0], entries[-1]],
        entries[:-1],  # without the largest, by which retention goes
    ):
        create(fs, path_of(0, ".timeindex"), b"".join(wrong))
        assert codes(check(fs))[1:] == [(Severity.DERIVED, Code.INDEX_WRONG)]
        assert totals(check(fs, repair=True)).is_sound


def _killed_while_rolling() -> ForgetfulFileSystem:
    """Segment 10 is closed but not known to be on the disk; segment 20 is active."""
    fs = _of_kafka(written(23, clean=False))
    create(fs, f"{DATA}/recovery-point-offset-checkpoint", encode_offsets({("commits", 0): 10}))
    return fs


def test_a_kill_during_a_roll_leaves_indexes_trimmed_and_not() -> None:
    fs = _killed_while_rolling()
    entries = _largest_so_far(fs, 10)
    create(fs, path_of(10, ".index"), b"")
    create(fs, path_of(10, ".timeindex"), entries[-1].ljust(_ALLOCATED, b"\0"))
    told = check(fs)
    assert faults(told) == []
    assert [finding.path for finding in findings(told) if finding.code == Code.INDEX_PADDING] == [
        path_of(10, ".timeindex")
    ]


def test_padding_below_the_recovery_point_is_wrong() -> None:
    fs = _killed_while_rolling()
    create(fs, path_of(0, ".timeindex"), _largest_so_far(fs, 0)[-1].ljust(_ALLOCATED, b"\0"))
    assert [finding.path for finding in faults(check(fs))] == [path_of(0, ".timeindex")]


def test_offsets_in_no_batch_are_damage_also_where_kafka_wrote_the_topic() -> None:
    fs = _of_kafka(written(33))
    for suffix in (".log", ".index", ".timeindex"):
        fs.unlink(path_of(10, suffix))
    told = check(fs)
    [lost] = faults(told)
    assert (lost.severity, lost.code, lost.start_offset, lost.end_offset) == (
        Severity.DAMAGE,
        Code.OFFSETS_MISSING,
        10,
        20,
    )
    assert not totals(told).is_sound
    create(fs, f"{DATA}/cleaner-offset-checkpoint", encode_offsets({("commits", 0): 20}))
    assert faults(check(fs)) == [], "compaction leaves such gaps below its checkpoint"
