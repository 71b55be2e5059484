"""The log directory: whose it is, what its files say, what a start completes, sets aside or refuses, how it stops."""

import errno
import os
import struct
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from seglog_broker.storage.directory.identity import decode_properties
from seglog_broker.storage.directory.kafka_signs import metadata_files
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.partition_loader import LoadingStoppedError
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import File, PosixFileSystem, outcome_of
from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.storage.log.appender import Appended
from seglog_broker.storage.log.partition_files import PARTITIONS_AT_A_TIME, empty_directory
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, Fault, ForgetfulFileSystem, Operation
from seglog_protocol import errors
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checkpoint_files import TopicPartition, encode_offsets
from tests.logs import append_one, batch, cut_file, read_all
from tests.support import each_case
from tests.unit.broker.inspect.check.support import check, findings
from tests.unit.broker.storage.directory.directories import opened, put
from tests.unit.broker.storage.steps import create_topic, delete_topic

_MARKER = "/data/.kafka_cleanshutdown"
_ID = "IVT1Seu3QjacxS7oBTKhDQ"
_OTHER_ID = "AAAAAAAAAAAAAAAAAAAAZQ"
_KAFKA_META = (
    b"#\n#Thu Jan 01 00:00:00 UTC 2026\nnode.id=4\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\nversion=1\ncluster.id=k\n"
)


def _append(log: PartitionLog, value: bytes = b"value") -> Appended:
    return append_one(log, batch(value))


def _with_topic(*, partitions: int = 2, records: int = 5) -> tuple[ForgetfulFileSystem, LogDirectory]:
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "orders", partitions, {"segment.bytes": "1024"})
    for log in directory.logs.values():
        for _ in range(records):
            _append(log)
    return fs, directory


def _stopped(*, partitions: int = 2, records: int = 5) -> ForgetfulFileSystem:
    """The disk of such a directory after a clean stop."""
    fs, directory = _with_topic(partitions=partitions, records=records)
    assert directory.close() == []
    return fs


def _kafka_partition(topic_id: str = _ID, records: int = 3) -> dict[str, bytes]:
    """The files of a partition directory as Kafka leaves them after a clean stop."""
    fs = _stopped(partitions=1, records=records)
    files = {path.rpartition("/")[2]: data for path, data in fs.snapshot().items() if "/orders-0/" in path}
    del files["seglog-partition.json"]
    return files | {"partition.metadata": f"version: 0\ntopic_id: {topic_id}".encode()}


def _kafka_directory(**partitions: str) -> dict[str, bytes]:
    """A directory of Kafka's; ``name=topic id`` for each partition, ``_`` standing for ``-``."""
    found = {"/data/meta.properties": _KAFKA_META, "/data/bootstrap.checkpoint": b"\0"}
    for name, topic_id in partitions.items():
        for file, data in _kafka_partition(topic_id).items():
            found[f"/data/{name.replace('_', '-')}/{file}"] = data
    return found


# --- Whose directory it is --------------------------------------------------------------------------------------------


def test_a_new_directory_is_made_and_says_whose_it_is() -> None:
    fs = ForgetfulFileSystem()
    directory = opened(fs, path="/a/b/data", new_uuid=lambda: uuid.UUID(int=101))
    report = directory.report
    assert report.clean
    assert directory.cluster_id == _OTHER_ID
    files = fs.found_after(POWER_LOSS).snapshot()
    assert files["/a/b/data/meta.properties"] == (
        b"#\n# written by seglog\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\nversion=1\n"
        b"cluster.id=AAAAAAAAAAAAAAAAAAAAZQ\n"
    )
    assert files["/a/b/data/seglog-format"] == b"1\n"
    assert "/a/b/data/seglog-topics.json" in files


def test_a_missing_identity_beside_data_is_reported_and_the_new_one_is_kept() -> None:
    fs, directory = _with_topic()
    cluster_id = directory.cluster_id
    directory.close()
    fs.unlink("/data/meta.properties")
    again = opened(fs)
    assert again.cluster_id != cluster_id
    [problem] = again.report.problems
    assert problem.startswith(f"meta.properties was missing: from now on the cluster id is {again.cluster_id}")
    again.close()
    third = opened(fs)
    assert (third.report.problems, third.cluster_id) == ([], again.cluster_id)


def test_on_real_files_a_second_broker_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    path = str(tmp_path / "data")
    first = opened(fs, path=path)
    with pytest.raises(errors.LogDirectoryError, match="in use"):
        opened(fs, path=path)
    create_topic(first, "t", 1, {})
    _append(first.logs["t", 0])
    assert first.close() == []
    assert (tmp_path / "data" / ".lock").exists(), "the lock file is never deleted"
    second = opened(fs, path=path)
    assert second.report.clean
    assert len(read_all(second.logs["t", 0])) == 1
    second.close()


def test_workers_of_a_killed_broker_hold_the_lock(tmp_path: Path) -> None:
    """A worker process that outlives a killed broker keeps the next one out; on real files."""
    fs = PosixFileSystem()
    fs.orphans_wait_seconds = 0.0
    path = str(tmp_path / "data")
    first = opened(fs, path=path)
    inherited = os.dup(first.lock.hold.descriptors[0])
    assert first.close() == []
    with pytest.raises(errors.LogDirectoryError, match="still work in"):
        opened(fs, path=path)
    os.close(inherited)
    second = opened(fs, path=path)
    assert second.report.clean
    second.close()


@each_case(
    "foreign",
    [
        {"/data/photos/cat.jpg": b"x"},
        {"/data/notes.tmp": b"x", "/data/lost+found/": b"", "/data/lost/": b""},
        {"/data/orders-x/": b""},
        {"/data/My Documents-3/letter.txt": b"x"},
        {"/data/orders-3.zip-delete/": b"", "/data/orders-delete/": b""},
        {"/data/meta.properties": b"version=2\nnode.id=1\n", "/data/meta.properties.tmp": b"x"},
        {"/data/meta.properties": b"node.id = 1\n version : 17 \n"},
    ],
)
def test_a_foreign_directory_is_refused_and_not_touched(foreign: dict[str, bytes]) -> None:
    fs = ForgetfulFileSystem()
    fs.load(foreign)
    with pytest.raises(errors.LogDirectoryError, match="choose"):
        opened(fs)
    assert fs.operations == []
    assert fs.open_files == []


@each_case("text", [b"2\n", b"17", b"x", b"", b"-1"])
def test_a_directory_of_a_newer_format_is_refused_and_not_touched(text: bytes) -> None:
    fs = _stopped()
    put(fs, "/data/seglog-format", text)
    fs.operations.clear()
    with pytest.raises(errors.LogDirectoryError, match="knows formats up to 1"):
        opened(fs)
    assert fs.operations == []
    assert fs.open_files == []


def test_a_file_in_the_place_of_the_directory_is_refused() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data": b""})
    with pytest.raises(errors.LogDirectoryError, match="is a file"):
        opened(fs)


@each_case("operation", ["open", "lock", "pwritev", "fdatasync", "rename", "sync_directory", "truncate"])
@each_case("code", [errno.EROFS, errno.ENOSPC])
def test_a_directory_that_cannot_be_written_is_refused_with_a_sentence(operation: str, code: int) -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/": b""})
    fs.inject(Fault(operation, error=code, sticky=True))
    with pytest.raises(
        errors.LogDirectoryError, match=r"cannot be used as log directory: E.*check that it is writable"
    ):
        opened(fs)
    assert fs.open_files == []
    fs.heal()
    assert opened(fs).close() == []


def test_a_file_that_may_not_be_read_is_named_in_words() -> None:
    fs = _stopped()
    fs.inject(Fault("open", "/data/meta.properties", error=errno.EACCES))
    with pytest.raises(errors.LogDirectoryError) as refused:
        opened(fs)
    assert "meta.properties)" in refused.value.message
    fs.inject(Fault("open", "orders-1/seglog-partition.json", error=errno.EACCES, sticky=True))
    [reason] = opened(fs).report.offline.values()
    assert "orders-1/seglog-partition.json)" in reason
    for text in (refused.value.message, reason):
        assert not any(word in text for word in ("Errno", "OSError", "PermissionError", "None"))


def test_unknown_files_stay_and_only_our_own_half_written_ones_go() -> None:
    fs = _stopped()
    others = {"/data/notes.txt": b"x", "/data/notes.tmp": b"x", "/data/.DS_Store": b"x"}
    own = {
        f"/data/{name}.tmp": b"x" for name in ("meta.properties", "seglog-topics.json", "log-start-offset-checkpoint")
    }
    fs.load(others | own)
    opened(fs)
    found = fs.snapshot()
    assert {path: found.get(path) for path in others} == others
    assert not set(found) & set(own)


def test_kafkas_own_directories_are_passed_over() -> None:
    fs = _stopped()
    metadata = "/data/__cluster_metadata-0/partition.metadata"
    fs.load({metadata: b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", "/data/remote-log-index-cache/": b""})
    assert set(opened(fs).registry.topics) == {"orders"}
    assert fs.exists(metadata)


@each_case("text", [b"", b"node.id=1\n", b"version=0\nbroker.id=3\n", b"cluster.id=\nversion=1\n"])
def test_older_and_sparser_meta_properties_are_taken_and_kept(text: bytes) -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/meta.properties": text})
    assert opened(fs).cluster_id == ""
    assert fs.snapshot()["/data/meta.properties"] == text


def test_comments_and_blank_lines_are_passed_over() -> None:
    text = b"#\n#Sat Nov 21 03:26:57 UTC 2026\nnode.id=1\n\n! also one\nversion=1\r\ncluster.id = IVT1\n nothing\n"
    assert decode_properties(text) == {"node.id": "1", "version": "1", "cluster.id": "IVT1"}


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert decode_properties(b"a=\xff\nb:2") == {"a": "\ufffd", "b": "2"}


# --- Directories that Kafka wrote -------------------------------------------------------------------------------------


def test_a_partition_without_an_id_is_adopted_and_gets_one() -> None:
    fs = ForgetfulFileSystem()
    files = _kafka_directory(clicks_0=_ID)
    del files["/data/clicks-0/partition.metadata"]
    fs.load(files)
    directory = opened(fs)
    assert len(read_all(directory.logs["clicks", 0])) == 3
    topic_id = directory.registry.topics["clicks"].id
    assert fs.snapshot()["/data/clicks-0/partition.metadata"] == f"version: 0\ntopic_id: {topic_id}".encode()


def test_kafkas_directories_awaiting_deletion_are_named_for_it_and_stray_ones_stay() -> None:
    fs = ForgetfulFileSystem()
    gone, stray = f"/data/clicks-1.{'0' * 32}-delete", f"/data/clicks-2.{'0' * 32}-stray"
    fs.load(_kafka_directory(clicks_0=_ID) | {f"{gone}/x.log": b"", f"{stray}/x.log": b""})
    directory = opened(fs)
    assert directory.registry.topics["clicks"].partitions == 1
    assert directory.report.deleted_directories == [gone]
    assert fs.exists(stray)


# --- Topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_cannot_be_created_under_a_wrong_or_used_name_or_with_a_wrong_count() -> None:
    _, directory = _with_topic()
    with pytest.raises(errors.TopicExistsError):
        create_topic(directory, "orders", 1, {})
    for name in ("", "..", "a/b", "t" * 250):
        with pytest.raises(errors.InvalidTopicError):
            create_topic(directory, name, 1, {})
    for count in (0, -1, 10_001):
        with pytest.raises(errors.InvalidPartitionsError):
            create_topic(directory, "other", count, {})
    assert set(directory.registry.topics) == {"orders"}


def _create(directory: LogDirectory, topics: dict[str, int]) -> None:
    """Create topics with these numbers of partitions together."""
    new = [directory.topics.new_topic(name, partitions, {}) for name, partitions in topics.items()]
    creation = directory.topics.plan_creation(new)
    directory.topics.finish_creation(creation, outcome_of(creation.run))


@pytest.mark.parametrize("topics", [{"orders": 3}, {"orders": 1, "clicks": 2}], ids=["one topic", "two topics"])
def test_a_crash_between_registry_and_directories_is_completed_at_the_next_start(topics: dict[str, int]) -> None:
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    found: list[ForgetfulFileSystem] = []
    policies = (PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(3)))
    fs.on_operation = lambda _: found.extend(map(fs.found_after, policies))
    _create(directory, topics)
    assert len(found) > 100
    outcomes = []
    for crashed in (*found, *map(fs.found_after, policies)):
        again = opened(crashed)
        assert (again.report.problems, again.report.offline) == ([], {})
        outcomes.append(len(again.logs))
        for log in again.logs.values():
            assert _append(log).base_offset == 0
        for topic, partition in again.logs:
            metadata = crashed.snapshot()[f"/data/{topic}-{partition}/partition.metadata"]
            assert again.registry.topics[topic].id.encode() in metadata
    assert set(outcomes) == {0, 3}, "all of its partitions or none"
    assert outcomes[-len(policies) :] == [3] * len(policies), "all of them as soon as they are created"
    assert opened(fs.found_after(POWER_LOSS)).registry.topics == directory.registry.topics


def test_topics_created_together_are_synced_in_a_few_rounds() -> None:
    """Not file by file: creating 100 topics of 4 partitions would take seconds."""
    rounds: list[int] = []

    class Counted(ForgetfulFileSystem):
        def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
            rounds.append(len(files))
            return super().sync_files(files)

        def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
            rounds.append(len(paths))
            return super().sync_directories(paths)

        def sync_directory(self, path: str) -> None:
            rounds.append(1)
            super().sync_directory(path)

    directory = opened(Counted())
    rounds.clear()
    _create(directory, {f"topic-{number}": 4 for number in range(100)})
    assert len(directory.logs) == 400
    alone = [count for count in rounds if count == 1]
    assert len([count for count in rounds if count > 1]) <= 4 * (400 // PARTITIONS_AT_A_TIME + 1)
    assert sum(rounds) - len(alone) == 4 * 400, "two files and twice the directory, of each partition"


@each_case("clean", [True, False])
@each_case("records", [0, 5])
@each_case("leaves_directory", [False, True])
def test_a_partition_that_is_gone_is_offline_and_not_made_again_empty(
    clean: bool, records: int, leaves_directory: bool
) -> None:
    """Also before the first checkpoint after its creation."""
    fs, directory = _with_topic(records=records)
    if clean:
        directory.close()
    else:
        for log in directory.logs.values():
            log.flusher.flush()
        directory.abandon()
        fs = fs.crash(POWER_LOSS)
    fs.remove_tree("/data/orders-1")
    if leaves_directory:
        fs.make_directory("/data/orders-1")
        fs.sync_directory("/data")
    for _ in range(2):
        directory = opened(fs)
        assert list(directory.report.offline) == [("orders", 1)]
        what = "has lost its files" if leaves_directory else "is gone"
        assert directory.report.offline["orders", 1].startswith(f"/data/orders-1 {what}")
        assert list(directory.logs) == [("orders", 0)]
        directory.close()
        assert fs.exists("/data/orders-1") == leaves_directory


def test_a_topic_that_could_not_be_made_leaves_no_trace_and_no_open_file() -> None:
    for operation in ("make_directory", "pwritev", "open", "fdatasync"):
        fs = ForgetfulFileSystem()
        directory = opened(fs)
        fs.inject(Fault(operation, lambda path: "orders-1" in path, error=errno.ENOSPC))
        with pytest.raises(errors.StorageError, match="could not be created"):
            create_topic(directory, "orders", 2, {})
        fs.heal()
        assert [path for path in fs.snapshot() if "orders-" in path] == []
        assert fs.open_files == ["/data/.lock"]
        create_topic(directory, "orders", 2, {})
        directory.close()
        again = opened(fs)
        assert set(again.logs) == {("orders", 0), ("orders", 1)}
        assert again.report.problems == []


@pytest.mark.parametrize("operation", ["open", "list_directory"])
def test_topics_without_descriptors(
    operation: str,
) -> None:
    """A topic that could not be made or removed for want of descriptors can be made when there are some."""
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "clicks", 1, {})
    fs.inject(Fault(operation, lambda path: "orders-1" in path or "clicks-2" in path, error=errno.EMFILE, sticky=True))
    fs.inject(Fault("remove_tree", error=errno.EMFILE, sticky=True))
    with pytest.raises(errors.OutOfResourcesError, match=r"orders could not be created: .*open files \(ulimit -n"):
        create_topic(directory, "orders", 2, {})
    clicks = directory.registry.topics["clicks"]
    alteration = directory.topics.plan_alteration(clicks, 3, {})
    error = outcome_of(alteration.run)
    with pytest.raises(errors.OutOfResourcesError, match=r"clicks could not be altered: .*open files \(ulimit -n"):
        directory.topics.finish_alteration(clicks, alteration, error)
    fs.heal()
    left = {f"/data/{name}" for name in fs.list_directory("/data") if name.startswith(("orders", "clicks"))}
    assert left - set(directory.topics.half_made) == {"/data/clicks-0"}
    assert directory.topics.half_made
    create_topic(directory, "orders", 2, {})
    for log in directory.logs.values():
        assert _append(log).base_offset == 0
    directory.close()
    again = opened(fs)
    assert set(again.logs) == {("orders", 0), ("orders", 1), ("clicks", 0)}
    assert set(again.report.deleted_directories) == set(directory.topics.half_made)
    assert set(directory.topics.take_half_made()) == set(again.report.deleted_directories)
    assert directory.topics.half_made == []
    assert again.report.problems == []


def _crashes(fs: ForgetfulFileSystem, promises: list[str]) -> list[tuple[ForgetfulFileSystem, bool]]:
    """Filled with what a kill and a power cut would leave at each operation, and whether there is a promise by then."""
    found: list[tuple[ForgetfulFileSystem, bool]] = []
    fs.on_operation = lambda _: found.extend(
        (fs.found_after(each), bool(promises)) for each in (PROCESS_KILL, POWER_LOSS)
    )
    return found


@pytest.mark.parametrize("created_again", [False, True])
def test_a_crash_at_any_step_of_a_deletion_leaves_the_topic_whole_or_gone(created_again: bool) -> None:
    fs, directory = _with_topic()
    for log in directory.logs.values():
        log.flusher.flush()
    promises: list[str] = []
    found = _crashes(fs, promises)
    doomed = delete_topic(directory, directory.registry.topics["orders"])
    promises.append("orders is deleted")
    if created_again:
        create_topic(directory, "orders", 2, {})
    for path in doomed:
        fs.remove_tree(path)
    for crashed, is_promised in found:
        again = opened(crashed)
        assert (again.report.problems, again.report.offline) == ([], {})
        ends = {log.log_end_offset for log in again.logs.values()}
        assert ends <= {0, 5}
        assert len(ends) <= 1
        if is_promised:
            assert 5 not in ends, "what was deleted does not come back under its old name"
        for path in again.report.deleted_directories:
            crashed.remove_tree(path)
        directories = [name for name in crashed.list_directory("/data") if name.startswith("orders-")]
        assert directories == (["orders-0", "orders-1"] if again.logs else [])


@each_case(
    ("free", "faults", "error"),
    [
        (None, [Fault("pwritev", "seglog-topics.json.tmp", error=errno.EIO)], errors.StorageError),
        # Neither the registry nor a name can tell it: both directories would have to grow.
        (0, [Fault("rename", f"/orders-{n}", error=errno.ENOSPC) for n in (0, 1)], errors.DiskFullError),
        # A name that is not on the disk for certain is taken back.
        (0, [Fault("sync_directory", "/data", error=errno.EIO)], errors.StorageError),
    ],
)
def test_a_deletion_that_cannot_be_recorded_leaves_the_topic_in_service(
    free: int | None, faults: list[Fault], error: type[errors.SeglogError]
) -> None:
    fs, directory = _with_topic()
    fs.limit_free_bytes(free)
    for fault in faults:
        fs.inject(fault)
    with pytest.raises(error, match="could not be deleted"):
        delete_topic(directory, directory.registry.topics["orders"])
    fs.heal()
    assert {"orders-0", "orders-1"} <= set(fs.list_directory("/data"))
    assert not directory.topics.unrecorded
    fs.limit_free_bytes(None)
    assert _append(directory.logs["orders", 0]).base_offset == 5
    directory.close()
    assert opened(fs).registry.deleting == []


@pytest.mark.parametrize("created_again", [False, True])
@pytest.mark.parametrize("room_again", [False, True])
@pytest.mark.parametrize("gone", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.soak
def test_a_crash_during_a_deletion_on_a_full_disk(created_again: bool, room_again: bool, gone: bool) -> None:
    """Also where the next start has no more room, and is killed, too; and where a directory is gone before."""
    fs, directory = _with_topic(partitions=3)
    for log in directory.logs.values():
        log.flusher.flush()
    create_topic(directory, "kept", 1, {})
    if gone:
        fs.remove_tree("/data/orders-0")
        fs.sync_directory("/data")
    fs.limit_free_bytes(0)
    promises: list[str] = []
    found = _crashes(fs, promises)
    doomed = delete_topic(directory, directory.registry.topics["orders"])
    assert len(directory.topics.unrecorded) == 1
    promises.append("orders is deleted")
    for path in doomed:
        if path in directory.topics.unrecorded:
            empty_directory(fs, path)
        else:
            fs.remove_tree(path)
    directory.topics.registry_writing()()
    for path in directory.topics.note_recorded():
        fs.remove_tree(path)
    assert not directory.topics.unrecorded
    if created_again:
        create_topic(directory, "orders", 3, {})
    kept = {"kept-0"}
    for crashed, is_promised in found:
        for policy in (PROCESS_KILL, POWER_LOSS):
            crashed.limit_free_bytes(None if room_again else 0)
            again = opened(crashed)
            topics = set(again.registry.topics)
            assert topics in ({"kept"}, {"kept", "orders"})
            if is_promised and not created_again:
                assert topics == {"kept"}, "what was deleted does not come back"
            if "orders" in topics and not gone:
                assert {key for key in again.logs | again.recovering if key[0] == "orders"} == {
                    ("orders", number) for number in range(3)
                }
                ends = {log.log_end_offset for key, log in again.logs.items() if key[0] == "orders"}
                assert ends <= ({0} if is_promised else {0, 5})
                assert len(ends) <= 1
            for path in again.report.deleted_directories:
                if path in again.topics.unrecorded:
                    empty_directory(crashed, path)
                else:
                    crashed.remove_tree(path)
            directories = {
                name for name in crashed.list_directory("/data") if crashed.stat(f"/data/{name}").is_directory
            }
            if topics == {"kept"}:
                assert directories - {path.rpartition("/")[2] for path in again.topics.unrecorded} == kept
            crashed = crashed.crash(policy)  # noqa: PLW2901 - and once more


def _with_ballast_on_a_full_disk() -> tuple[ForgetfulFileSystem, LogDirectory]:
    fs = ForgetfulFileSystem()
    fs.limit_free_bytes(100_000)
    directory = opened(fs, "seglog.disk.ballast.bytes=10000", *_NO_MARKS)
    create_topic(directory, "orders", 2, {})
    for log in directory.logs.values():
        _append(log)
    directory.space.make_ballast()
    fs.limit_free_bytes(0)
    return fs, directory


_NO_MARKS = ("seglog.disk.free.hard.bytes=0", "seglog.disk.free.soft.bytes=0")


@each_case("a_name_grows", [False, True])
def test_a_deletion_on_a_full_disk_is_written_into_the_room_of_the_ballast(a_name_grows: bool) -> None:
    fs, directory = _with_ballast_on_a_full_disk()
    if a_name_grows:
        fs.limit_free_bytes(10_000)
        fs.inject(Fault("rename", "/orders-1", error=errno.ENOSPC))
    assert len(delete_topic(directory, directory.registry.topics["orders"])) == 2
    assert directory.space.ballast == 0
    assert opened(fs.found_after(POWER_LOSS)).registry.topics == {}


def test_a_stop_on_a_full_disk_is_clean_at_the_cost_of_the_ballast() -> None:
    fs, directory = _with_ballast_on_a_full_disk()
    assert directory.close() == []
    assert fs.exists(_MARKER)


def _without_inodes(*, stops: int, partitions: int = 20) -> tuple[ForgetfulFileSystem, LogDirectory]:
    """A directory whose file system has lost its last inode to others, but for the spare files.

    It has been stopped before ``stops`` times, so that there is one or none of each file that a stop makes.
    """
    fs = ForgetfulFileSystem()
    fs.limit_free_inodes(10_000)
    directory = opened(fs)
    create_topic(directory, "orders", partitions, {"segment.bytes": "1024"})
    for _ in range(stops):
        assert directory.close() == []
        directory = opened(fs)
    for number, log in enumerate(directory.logs.values()):
        for _ in range(number):
            _append(log)
        _append_once(log, sequence=0)
    directory.space.make_ballast()
    directory.space.make_spares()
    directory.space.update(*directory.space.measure())
    fs.limit_free_inodes(0)
    return fs, directory


def _append_once(log: PartitionLog, *, sequence: int) -> Appended:
    encoded = encode_batch([(1, None, b"once", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
    return append_one(log, encoded)


def _facts(directory: LogDirectory) -> dict[TopicPartition, tuple[object, ...]]:
    """What a stop and a start leave as it is."""
    return {
        key: (log.log_start_offset, log.log_end_offset, log.epochs.entries, list(log.producers.entries()))
        for key, log in directory.logs.items()
    }


@pytest.mark.parametrize("stops", [0, 1])
def test_a_stop_without_an_inode_is_clean_and_the_next_start_finds_all(stops: int) -> None:
    fs, directory = _without_inodes(stops=stops)
    facts = _facts(directory)
    for _ in range(3):  # and none is freed meanwhile
        assert directory.close() == []
        assert fs.exists(_MARKER if stops else "/data/seglog-clean-partitions")
        for policy in (PROCESS_KILL, POWER_LOSS):
            found = opened(fs.found_after(policy))
            assert (_facts(found), found.report.problems) == (facts, [])
            assert not any(opened.recovery for opened in found.report.opened.values())
            found.abandon()
        again = fs.found_after(PROCESS_KILL)
        again.limit_free_inodes(None)
        assert findings(check(again)) == []
        directory = opened(fs)
        assert _facts(directory) == facts
        directory.space.make_spares()
        fs.limit_free_inodes(0)
    assert all(_append_once(log, sequence=0).duplicate_of is not None for log in directory.logs.values())
    fs.limit_free_inodes(None)
    assert directory.close() == []
    assert fs.exists(_MARKER)


@pytest.mark.parametrize("stops", [0, 1])
@pytest.mark.soak
def test_a_stop_without_an_inode_that_finds_no_room_at_any_step_loses_nothing(stops: int) -> None:
    fs, directory = _without_inodes(stops=stops, partitions=3)
    expected = {key: facts[:2] + facts[3:] for key, facts in _facts(directory).items()}  # epochs may begin anew
    fs.operations.clear()
    directory.close()
    for name, path in {(op.name, op.path): None for op in fs.operations}:
        fs, directory = _without_inodes(stops=stops, partitions=3)
        fs.inject(Fault(name, path, error=errno.ENOSPC))
        problems = directory.close()
        after = fs.found_after(PROCESS_KILL)
        after.limit_free_inodes(None)
        found = opened(after)
        assert {key: facts[:2] + facts[3:] for key, facts in _facts(found).items()} == expected, (name, path, problems)
        assert (found.report.offline, found.report.problems) == ({}, []), (name, path)


def test_a_directory_that_no_topic_knows_is_set_aside_and_never_deleted() -> None:
    fs = _stopped()
    fs.load({f"/data/orders-7/{name}": data for name, data in _kafka_partition(_ID).items()})
    fs.load({f"/data/clicks-0/{name}": data for name, data in _kafka_partition(_OTHER_ID).items()})
    before = fs.snapshot()
    directory = opened(fs)
    assert len(directory.report.problems) == 2
    strays = [name for name in fs.list_directory("/data") if name.endswith("-stray")]
    assert [name.partition(".")[0] for name in strays] == ["clicks-0", "orders-7"]
    for stray in strays:
        kept = {path.rpartition("/")[2]: data for path, data in fs.snapshot().items() if f"/{stray}/" in path}
        original = f"/data/{stray.partition('.')[0]}/"
        assert kept == {path.removeprefix(original): data for path, data in before.items() if path.startswith(original)}
    directory.close()
    assert opened(fs).report.problems == []


def test_a_directory_of_another_topic_of_that_name_is_not_served_as_this_one() -> None:
    fs = _stopped()
    put(fs, "/data/orders-1/partition.metadata", f"version: 0\ntopic_id: {_ID}".encode())
    directory = opened(fs)
    assert set(directory.logs) == {("orders", 0)}
    assert _ID in directory.report.offline["orders", 1]


def test_an_impossible_topic_configuration() -> None:
    """A topic whose configuration is no longer valid uses the broker's, with a warning."""
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "orders", 1, {})
    topic = directory.registry.topics["orders"]
    directory.registry.topics["orders"] = replace(topic, config={"segment.bytes": "-5"})
    directory.registry.save()
    directory.close()
    directory = opened(fs)
    assert "orders uses the broker's defaults" in directory.report.problems[0]
    assert directory.logs["orders", 0].config.segment_bytes == 1 << 30


# --- One bad partition ------------------------------------------------------------------------------------------------


def test_a_partition_that_cannot_be_read_is_offline_and_does_not_stop_the_others() -> None:
    fs = _stopped(partitions=3)
    fs.inject(Fault("list_directory", "/orders-1", error=errno.EIO, sticky=True))
    directory = opened(fs)
    assert set(directory.logs) == {("orders", 0), ("orders", 2)}
    assert "EIO" in directory.report.offline["orders", 1]
    assert _append(directory.logs["orders", 2]).base_offset == 5
    assert directory.close() == []
    assert not fs.exists(_MARKER), "one log was not loaded: the next start has to look"
    fs.heal()
    directory = opened(fs)
    assert not directory.report.clean
    assert len(directory.logs) == 3


def test_an_offline_partition_holds_no_file_and_keeps_its_checkpoints() -> None:
    fs, directory = _with_topic(partitions=2)
    for log in directory.logs.values():
        log.truncate_before(3)
    directory.close()
    fs.inject(Fault("fdatasync", "/orders-1/leader-epoch-checkpoint.tmp", error=errno.EIO))
    fs.unlink("/data/orders-1/leader-epoch-checkpoint")
    directory = opened(fs)
    assert set(directory.report.offline) == {("orders", 1)}
    assert {path.split("/")[2] for path in fs.open_files} == {".lock", "orders-0"}
    directory.close()
    fs.heal()
    directory = opened(fs)
    assert directory.logs["orders", 1].log_start_offset == 3
    assert directory.logs["orders", 1].log_end_offset == 5


# --- Starting and stopping --------------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_kafkas_files_with_kafkas_texts() -> None:
    fs, directory = _with_topic()
    directory.logs["orders", 1].truncate_before(2)
    assert directory.close() == []
    found = fs.found_after(POWER_LOSS).snapshot()
    assert found[_MARKER] == b'{"version":0,"brokerEpoch":-1}'
    assert found["/data/recovery-point-offset-checkpoint"] == b"0\n2\norders 0 5\norders 1 5\n"
    assert found["/data/replication-offset-checkpoint"] == b"0\n2\norders 0 5\norders 1 5\n"
    assert found["/data/log-start-offset-checkpoint"] == b"0\n1\norders 1 2\n"
    assert found["/data/orders-0/leader-epoch-checkpoint"] == b"0\n1\n0 0\n"
    assert found["/data/orders-0/partition.metadata"].startswith(b"version: 0\ntopic_id: ")
    assert fs.open_files == []
    assert not [path for path in found if path.endswith(".tmp")]


def test_the_marker_is_written_last_and_deleted_before_any_log_is_loaded() -> None:
    fs, directory = _with_topic()
    fs.operations.clear()
    directory.close()
    assert [op.detail for op in fs.operations if op.name == "rename"][-1] == (_MARKER,)
    assert fs.operations[-1][1:3] == ("sync_directory", "/data")
    fs.operations.clear()
    fs.reads.clear()
    crashed: list[ForgetfulFileSystem] = []

    def note(path: str) -> bool:
        if "/orders-" in path:
            crashed.append(fs.found_after(POWER_LOSS))
        return False

    fs.inject(Fault("list_directory", note, error=errno.EIO))
    directory = opened(fs)
    assert directory.report.clean
    during_loading = crashed[0]
    assert not during_loading.exists(_MARKER)
    again = opened(during_loading)
    assert not again.report.clean
    assert {log.log_end_offset for log in again.logs.values()} == {5}
    assert {log.leader_epoch for log in again.logs.values()} == {1}


@each_case("is_clean", [True, False])
@each_case("loaded", range(4))
def test_a_start_that_is_stopped_between_two_partitions_loses_nothing(loaded: int, is_clean: bool) -> None:
    def stop(done: int, total: int) -> None:
        assert total == 4
        if done == loaded:
            raise LoadingStoppedError

    fs, directory = _with_topic(partitions=4)
    if is_clean:
        directory.close()
    else:
        fs = fs.crash(PROCESS_KILL)
    for _ in range(2):
        with pytest.raises(LoadingStoppedError) as caught:
            opened(fs, loading=stop)
        assert caught.value.is_clean == is_clean == fs.exists(_MARKER)
        assert fs.open_files == []
    again = opened(fs.crash(POWER_LOSS) if is_clean else fs)
    assert again.report.clean == is_clean
    assert (again.report.offline, again.report.problems) == ({}, [])
    assert {log.log_end_offset for log in again.logs.values()} == {5}


def test_without_the_marker_every_log_is_read_from_its_recovery_point_on() -> None:
    fs, directory = _with_topic(records=50)
    bases = [segment.base_offset for segment in directory.logs["orders", 0].segments]
    assert len(bases) > 3
    directory.partitions.note_recovery_point(("orders", 0), bases[-1])
    for path, content in directory.partitions.encoded_checkpoints():
        fs.load({path: content})
    directory = opened(fs.crash(PROCESS_KILL))
    assert not directory.report.clean
    sizes = [segment.size for segment in directory.logs["orders", 0].segments]
    recoveries = [directory.report.opened["orders", partition].recovery for partition in (0, 1)]
    assert [recovery.scanned_bytes for recovery in recoveries if recovery] == [sizes[-1], sum(sizes)]


@each_case(
    ("fault", "words"),
    [
        (Fault("fdatasync", lambda path: "/orders-1/" in path, error=errno.EIO), "/data/orders-1"),
        (
            Fault("pwritev", "recovery-point-offset-checkpoint.tmp", error=errno.ENOSPC),
            "checkpoints of /data could not be written",
        ),
    ],
)
def test_the_marker_is_written_only_when_every_log_and_the_checkpoints_are_on_the_disk(
    fault: Fault, words: str
) -> None:
    fs, directory = _with_topic()
    fs.inject(fault)
    [problem] = directory.close()
    assert words in problem
    assert not fs.exists(_MARKER)
    assert fs.open_files == []
    directory = opened(fs)
    assert not directory.report.clean
    assert _append(directory.logs["orders", 0]).base_offset == 5


def test_missing_and_empty_checkpoints_are_no_problem() -> None:
    fs = _stopped()
    fs.unlink("/data/recovery-point-offset-checkpoint")
    cut_file(fs, "/data/log-start-offset-checkpoint", 0)
    directory = opened(fs)
    assert directory.report.problems == []
    assert {log.log_end_offset for log in directory.logs.values()} == {5}


@pytest.mark.parametrize("said", [None, b"0\n0\n", b"0\n1\norders 0 3\n"])
def test_a_log_start_that_differs_from_the_last_stop_is_reported_and_ignored(said: bytes | None) -> None:
    fs, directory = _with_topic()
    directory.logs["orders", 0].truncate_before(4)
    directory.close()
    fs.unlink("/data/log-start-offset-checkpoint")
    if said is not None:
        fs.load({"/data/log-start-offset-checkpoint": said})
    directory = opened(fs)
    [problem] = directory.report.problems
    assert problem.startswith("orders-0: log-start-offset-checkpoint says ")
    assert problem.endswith("where the last stop had 4: it is ignored")
    assert [log.log_start_offset for log in directory.logs.values()] == [4, 0]
    directory.close()
    assert opened(fs).report.problems == []


def test_a_state_file_missing_after_a_clean_stop_is_reported() -> None:
    fs, directory = _with_topic()
    directory.logs["orders", 0].truncate_before(4)
    directory.close()
    fs.unlink("/data/orders-0/seglog-partition.json")
    fs.unlink("/data/log-start-offset-checkpoint")
    directory = opened(fs)
    [problem] = directory.report.problems
    assert problem.startswith("orders-0: seglog-partition.json is missing: ")
    directory.close()
    assert opened(fs).report.problems == []


def test_checkpoints_of_a_deleted_topic() -> None:
    """Checkpoints of a topic that is gone are not read as those of a later one of its name."""
    fs, directory = _with_topic(records=50)
    directory.logs["orders", 0].truncate_before(40)
    directory.close()
    directory = opened(fs)
    for path in delete_topic(directory, directory.registry.topics["orders"]):
        fs.remove_tree(path)
    directory = opened(fs.crash(PROCESS_KILL))
    create_topic(directory, "orders", 2, {})
    for log in directory.logs.values():
        _append(log)
    directory.abandon()
    assert isinstance(directory._fs, ForgetfulFileSystem)
    directory = opened(directory._fs)
    assert [len(read_all(log)) for log in directory.logs.values()] == [1, 1]


def test_what_kafkas_cleaner_has_compacted_is_known_and_goes_with_its_topic() -> None:
    fs = _stopped(records=5)
    assert "/data/cleaner-offset-checkpoint" not in fs.snapshot(), "nothing was compacted here"
    fs.load({"/data/cleaner-offset-checkpoint": encode_offsets({("orders", 0): 3, ("gone", 0): 7})})
    directory = opened(fs)
    assert [log.state.compacted_before for log in directory.logs.values()] == [3, 0]
    assert read_offsets(fs, "/data/cleaner-offset-checkpoint") == {("orders", 0): 3}
    for path in delete_topic(directory, directory.registry.topics["orders"]):
        fs.remove_tree(path)
    create_topic(directory, "orders", 2, {})
    directory.close()
    assert read_offsets(fs, "/data/cleaner-offset-checkpoint") == {}
    directory = opened(fs)
    assert [log.state.compacted_before for log in directory.logs.values()] == [0, 0]


# --- One partition's trouble at a stop --------------------------------------------------------------------------------


def _close_with_a_bug(*, of_an_fsync: bool) -> tuple[list[str], ForgetfulFileSystem]:
    """Close three partitions, of which the second has a bug; the problems, and what a kill leaves."""
    fs, directory = _with_topic(partitions=3)

    def fail(operation: Operation) -> None:
        if "/orders-1/" in operation.path and (operation.name == "fdatasync") == of_an_fsync:
            raise struct.error("int too large to convert")

    fs.on_operation = fail
    problems = directory.close()
    fs.on_operation = None
    assert all("int too large" in problem for problem in problems)
    assert _MARKER not in fs.snapshot(), "Kafka would believe it for all of them"
    return problems, fs.crash(PROCESS_KILL)


def test_a_bug_in_one_partition_costs_no_other() -> None:
    """A bug in one partition costs the others neither their flush nor their clean stop."""
    [problem], fs = _close_with_a_bug(of_an_fsync=False)
    assert "orders-1" in problem
    points = read_offsets(fs, "/data/recovery-point-offset-checkpoint")
    assert (points["orders", 0], points.get(("orders", 1), 0), points["orders", 2]) == (5, 0, 5)
    again = opened(fs)
    assert not again.report.clean
    assert [again.logs["orders", number].leader_epoch for number in range(3)] == [0, 1, 0]
    assert [again.report.opened["orders", number].recovery is None for number in range(3)] == [True, False, True]
    assert "/data/seglog-clean-partitions" not in again._fs.list_directory("/data")
    assert again.close() == []


def test_a_bug_of_an_fsync_leaves_its_round_unclean() -> None:
    """After an fsync that neither succeeded nor failed, none of the logs that were synced with it counts as synced."""
    problems, fs = _close_with_a_bug(of_an_fsync=True)
    assert len(problems) == 3
    again = opened(fs)
    assert [log.log_end_offset for log in again.logs.values()] == [5, 5, 5]
    assert again.close() == []


def test_a_stop_before_every_partition_is_recovered_is_not_called_clean() -> None:
    fs, directory = _with_topic(partitions=2)
    directory.abandon()
    fs = fs.crash(PROCESS_KILL)
    stopped = opened(fs, in_line_bytes=0)
    waiting = [f"/data/{name}-{number}" for name, number in stopped.recovering]
    assert waiting
    assert stopped.close() == [f"{path} is not recovered yet; the next start does it" for path in waiting]
    assert _MARKER not in fs.snapshot()
    again = opened(fs)
    assert again.close() == []
    assert _MARKER in fs.snapshot()


def test_a_partition_whose_recovery_point_moved_is_not_clean() -> None:
    """A partition that was closed in order is not clean when its recovery point has moved since."""
    fs, directory = _with_topic(partitions=2)
    directory.logs["orders", 1].state_file.mark_read_only("an fsync failed")
    assert directory.close()
    fs.unlink("/data/recovery-point-offset-checkpoint")
    again = opened(fs.crash(PROCESS_KILL))
    assert again.logs["orders", 0].leader_epoch == 1


@pytest.mark.parametrize("said", [b"0", b"9", b"7"])
def test_a_recovery_point_with_a_flipped_bit_is_reported_and_causes_no_damage(said: bytes) -> None:
    fs = _stopped(partitions=1)
    path = "/data/recovery-point-offset-checkpoint"
    for is_clean in (True, False):
        changed = ForgetfulFileSystem()
        files = {name: data for name, data in fs.snapshot().items() if is_clean or name != _MARKER}
        changed.load(files | {path: files[path].replace(b"orders 0 5", b"orders 0 " + said)})
        again = opened(changed)
        log = again.logs["orders", 0]
        assert (log.log_end_offset, log.state.damaged, len(read_all(log))) == (5, [], 5)
        assert said == b"0" or any("recovery-point" in problem for problem in again.report.problems)


def test_a_registry_that_is_lost_is_called_lost_and_not_kafkas() -> None:
    fs = _stopped()
    fs.unlink("/data/seglog-topics.json")
    again = opened(fs)
    assert (again.report.adopted, again.report.remade) == ([], ["orders"])
    [problem] = again.report.problems
    assert problem.startswith("seglog-topics.json was missing and was made from the directories")
    [note] = again.registry.topics["orders"].notes
    assert "Kafka" not in note
    assert {log.log_end_offset for log in again.logs.values()} == {5}
    again.close()
    assert opened(fs).report.problems == []


# --- Files that are not understood ------------------------------------------------------------------------------------


@each_case(
    ("name", "content"),
    [
        ("orders-0/partition.metadata", b"version: 0\ntopic_id: of a later version"),
        ("orders-0/leader-epoch-checkpoint", b"1\n1\n0 0 more\n"),
        ("orders-0/seglog-partition.json", b'{"version": 1, "damaged": "all"}'),
        ("orders-0/00000000000000000005.snapshot", b"\0\2of a later version"),
        ("recovery-point-offset-checkpoint", b"1\n1\norders 0 5 more\n"),
        ("log-start-offset-checkpoint", b"1\n1\norders 0 5 more\n"),
        ("replication-offset-checkpoint", b"1\n1\norders 0 5 more\n"),
        ("cleaner-offset-checkpoint", b"1\n1\norders 0 5 more\n"),
        ("seglog-creation.json", b'{"version": 2}'),
    ],
)
def test_a_file_that_is_not_understood_is_copied_before_it_is_replaced_and_named(name: str, content: bytes) -> None:
    fs = _stopped()
    path = f"/data/{name}"
    put(fs, path, content)
    directory = opened(fs)
    [problem] = directory.report.problems
    folder, _, file = path.rpartition("/")
    [copy] = [found for found in fs.list_directory(folder) if found.startswith(f"{file}.unreadable-")]
    assert file in problem
    assert copy in problem
    assert ("is taken as empty" in problem) == file.endswith("-offset-checkpoint")
    assert [len(read_all(log)) for log in directory.logs.values()] == [5, 5]
    assert directory.close() == []
    survived = fs.found_after(POWER_LOSS)
    assert survived.snapshot()[f"{folder}/{copy}"] == content
    again = opened(survived)
    assert again.report.problems == []
    again.close()


@each_case(
    ("name", "content"),
    [
        *(
            (f"seglog-{name}", b"version=7\nof a later version\n")
            for name in ("topics.json", "configs.json", "producer-ids.json", "format")
        ),
        ("meta.properties", b"version=7\nof a later version\n"),
        ("seglog-topics.json", b'{"version": 1, "topi'),
    ],
)
def test_without_a_file_that_nothing_replaces_the_start_is_refused_and_it_stays(name: str, content: bytes) -> None:
    fs, directory = _with_topic()
    directory.producer_ids.next_block().run()
    directory.close()
    put(fs, f"/data/{name}", content)
    with pytest.raises(errors.LogDirectoryError, match=name) as refused:
        opened(fs)
    assert name != "seglog-topics.json" or "restore it from a backup" in refused.value.message
    assert fs.snapshot()[f"/data/{name}"] == content
    assert fs.open_files == []


def test_a_padded_topic_id_is_read_as_java_reads_it_and_stays() -> None:
    fs, directory = _with_topic()
    topic_id = directory.registry.topics["orders"].id
    directory.close()
    content = f"version: 0\ntopic_id: {topic_id}==".encode()
    put(fs, "/data/orders-0/partition.metadata", content)
    directory = opened(fs)
    assert directory.report.problems == []
    assert set(directory.logs) == {("orders", 0), ("orders", 1)}
    assert fs.snapshot()["/data/orders-0/partition.metadata"] == content


def test_on_a_full_disk_a_file_that_is_not_understood_is_named_all_the_same() -> None:
    fs = _stopped()
    put(fs, "/data/recovery-point-offset-checkpoint", b"garbage")
    fs.inject(Fault("pwritev", "recovery-point-offset-checkpoint.unreadable-b84cf34d.tmp", error=errno.ENOSPC))
    assert "the disk has no room for a copy of it" in opened(fs).report.problems[0]


# --- Names ------------------------------------------------------------------------------------------------------------


@each_case(
    "name",
    [
        *sorted(filenames.SKIPPED_DIRECTORIES),
        *sorted(filenames.REPLACED_FILES),
        "a.b-delete",
        "t-stray",
        "t-future",
        "x-0.0123456789abcdef0123456789abcdef-delete",
        "x-0.0123456789abcdef0123456789abcdef-stray",
        "__remote_log_metadata",
        "__cluster_metadata.x",
    ],
)
def test_a_topic_with_the_name_of_another_file_is_there_after_a_restart(name: str) -> None:
    fs, directory = _with_topic(partitions=1)
    create_topic(directory, name, 2, {})
    _append(directory.logs[name, 1])
    directory.close()
    again = opened(fs)
    assert (again.report.problems, again.report.kafka_signs) == ([], [])
    assert len(read_all(again.logs[name, 1])) == 1
    assert len(read_all(again.logs["orders", 0])) == 5


def test_no_topic_gets_the_name_of_kafkas_metadata_log() -> None:
    fs, directory = _with_topic()
    before = fs.snapshot()
    with pytest.raises(errors.InvalidRequestError, match="metadata log"):
        create_topic(directory, "__cluster_metadata", 1, {})
    assert fs.snapshot() == before


def _of_an_earlier_version(*, is_known: bool) -> ForgetfulFileSystem:
    """A topic under the reserved name with 5 records in each of 2 partitions; the registry may have lost it."""
    fs, directory = _with_topic()
    registry = directory.registry
    topic = replace(registry.topics["orders"], name="__cluster_metadata")
    del registry.topics["orders"]
    directory.close()
    if is_known:
        registry.topics[topic.name] = topic
    for number in (0, 1):
        fs.rename(f"/data/orders-{number}", f"/data/__cluster_metadata-{number}")
    fs.sync_directory("/data")
    registry.kafka_metadata = metadata_files(fs, "/data") if is_known else {}
    registry.save()
    return fs


@pytest.mark.parametrize("is_known", [True, False])
def test_a_topic_with_the_reserved_name_is_renamed(is_known: bool) -> None:
    """A topic that an earlier version made under the reserved name is renamed and named."""
    fs = _of_an_earlier_version(is_known=is_known)
    points = 0

    def crash_here(operation: object) -> None:
        nonlocal points
        points += 1
        found = fs.found_after(PROCESS_KILL)
        assert [len(read_all(log)) for log in opened(found).logs.values()] == [5, 5], operation

    fs.on_operation = crash_here
    directory = opened(fs)
    fs.on_operation = None
    assert points > 10
    assert set(directory.logs) == {("renamed.__cluster_metadata", 0), ("renamed.__cluster_metadata", 1)}
    assert "renamed.__cluster_metadata" in directory.report.problems[0]
    assert [len(read_all(log)) for log in directory.logs.values()] == [5, 5]
    assert directory.close() == []
    again = opened(fs)
    assert (again.report.problems, again.report.kafka_signs) == ([], [])
