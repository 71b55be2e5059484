"""A crash at every single file operation of produce, roll, checkpoint, stop, start and topic deletion.

One run of the scenario visits every crash point: before each operation takes effect, the disk is copied as it would be
found after a crash there, and a new broker's log directory is opened on the copy. What had been promised by then must
be in it: after a kill everything appended (``os``), after a power cut everything flushed (``disk``). And the log must
be sound, go on, and leave no stray file.
"""

from dataclasses import dataclass, field

import pytest

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.storage import filenames
from seglog_broker.storage.filesystem import write_file_atomically
from seglog_broker.storage.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    ForgetfulFileSystem,
    Operation,
)
from seglog_broker.storage.log_directory import LogDirectory
from seglog_broker.storage.partition_log import Flush, PartitionLog
from seglog_protocol import segment_files
from seglog_protocol.record_batch import parse_header
from tests.logs import ManualClock, batch, read_around, verify

_TOPIC_CONFIG = {"segment.bytes": "1024", "index.interval.bytes": "150", "segment.ms": "1000000000"}

Key = tuple[str, int]


@dataclass
class Promises:
    """What the broker has said so far."""

    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    written: dict[Key, list[tuple[int, bytes]]] = field(default_factory=dict)  # acked at os
    durable: dict[Key, int] = field(default_factory=dict)  # acked at disk: everything below


def _config() -> BrokerConfig:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return config


def _open(fs: ForgetfulFileSystem) -> LogDirectory:
    directory = LogDirectory(fs, ManualClock(), _config(), "/data")
    directory.open()
    return directory


class Scenario:
    """Two topics are made and written to across rolls, flushed now and then, one is deleted, the broker restarts."""

    def __init__(self, fs: ForgetfulFileSystem) -> None:
        self.fs = fs
        self.promises = Promises()

    def run(self) -> None:
        directory = _open(self.fs)
        self.create(directory, "orders", 2)
        for number in range(30):
            self.append(directory, ("orders", number % 2), number)
            if number % 7 == 0:
                self.flush(directory.logs["orders", number % 2], ("orders", number % 2))
            if number == 15:
                self.checkpoint(directory)
        self.create(directory, "doomed", 1)
        self.append(directory, ("doomed", 0), 1)
        self.delete(directory, "doomed")
        assert directory.close() == []
        for key, written in self.promises.written.items():
            self.promises.durable[key] = len(written)
        directory = _open(self.fs)
        for number in range(30, 45):
            self.append(directory, ("orders", 0), number)
        self.flush(directory.logs["orders", 0], ("orders", 0))
        assert directory.close() == []

    def create(self, directory: LogDirectory, topic: str, partitions: int) -> None:
        directory.create_topic(topic, partitions, dict(_TOPIC_CONFIG))
        self.promises.topics.add(topic)
        for partition in range(partitions):
            self.promises.written[topic, partition] = []
            self.promises.durable[topic, partition] = 0

    def append(self, directory: LogDirectory, key: Key, number: int) -> None:
        value = f"value {number}".encode() + b"." * (number % 5 * 20)
        view = memoryview(bytearray(batch(value, timestamp=1000 + number)))
        appended = directory.logs[key].append(view, parse_header(view))
        self.promises.written[key].append((appended.base_offset, value))

    def flush(self, log: PartitionLog, key: Key) -> None:
        log.flush()
        self.promises.durable[key] = log.log_end_offset

    def checkpoint(self, directory: LogDirectory) -> None:
        for key, log in directory.logs.items():
            flush: Flush = log.prepare_checkpoint()
            flush.run()
            log.finish_flush(flush, None)
            directory.note_recovery_point(key, flush.end_offset)
        for path, content in directory.checkpoints():
            write_file_atomically(self.fs, path, content)

    def delete(self, directory: LogDirectory, topic: str) -> None:
        self.promises.topics.discard(topic)  # from here on it may be there or not
        for path in directory.delete_topic(directory.registry.topics[topic]):
            self.fs.remove_tree(path)
        self.promises.deleted.add(topic)


def _check(found: ForgetfulFileSystem, promises: Promises, *, kept: bool) -> None:
    """Open what a crash left and hold it against what was promised; ``kept``: all that was written survived."""
    directory = _open(found)
    assert directory.report.offline == {}
    assert directory.report.problems == []
    known = set(directory.registry.topics)
    assert promises.topics <= known
    assert not promises.deleted & known
    for topic in promises.topics:
        for key in (key for key in promises.written if key[0] == topic):
            log = directory.logs[key]
            verify(found, log)
            records = {record.offset: record.value for record in read_around(log)}
            written = dict(promises.written[key])
            promised = set(written) if kept else {offset for offset in written if offset < promises.durable[key]}
            assert promised <= set(records), f"lost in {key}: {sorted(promised - set(records))}"
            # At most one batch was under way when the crash came.
            assert len(set(records) - set(written)) <= 1
            assert all(records[offset] == written[offset] for offset in set(records) & set(written))
    _check_no_stray_files(found, directory)
    for log in directory.logs.values():
        before = log.log_end_offset
        view = memoryview(bytearray(batch(b"after the crash")))
        assert log.append(view, parse_header(view)).base_offset == before
    ends = {key: log.log_end_offset for key, log in directory.logs.items()}
    assert directory.close() == []
    again = _open(found)
    assert again.report.clean
    assert {key: log.log_end_offset for key, log in again.logs.items()} == ends
    for log in again.logs.values():
        verify(found, log)
    again.close()
    assert found.open_files == []


def _check_no_stray_files(fs: ForgetfulFileSystem, directory: LogDirectory) -> None:
    own = {
        filenames.LOCK_FILE,
        filenames.META_PROPERTIES_FILE,
        filenames.REGISTRY_FILE,
        filenames.FORMAT_FILE,
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    }
    partitions = {filenames.partition_directory_name(*key) for key in directory.logs}
    for path in directory.report.doomed:
        fs.remove_tree(path)
    assert set(fs.list_directory("/data")) - own == partitions
    for key, log in directory.logs.items():
        expected = {
            segment_files.segment_file_name(segment.base_offset, suffix)
            for segment in log.segments
            for suffix in (".log", ".index", ".timeindex")
        }
        allowed = {"leader-epoch-checkpoint", "partition.metadata", "seglog-partition.json"}
        found = set(fs.list_directory(f"/data/{filenames.partition_directory_name(*key)}"))
        assert expected <= found
        assert found - expected <= allowed


@pytest.mark.parametrize(
    ("policy", "kept"),
    [(PROCESS_KILL, True), (POWER_LOSS, False), *((RANDOM(seed), False) for seed in range(5))],
    ids=["process kill", "power loss", *(f"random {seed}" for seed in range(5))],
)
def test_a_crash_before_any_operation_loses_nothing_promised(policy: CrashPolicy, kept: bool) -> None:
    fs = ForgetfulFileSystem()
    scenario = Scenario(fs)
    points = 0

    def crash_here(operation: Operation) -> None:
        nonlocal points
        points += 1
        try:
            _check(fs.found_after(policy), scenario.promises, kept=kept)
        except BaseException as error:
            error.add_note(f"at crash point {points}, before {operation}")
            raise

    fs.on_operation = crash_here
    scenario.run()
    assert points > 200
