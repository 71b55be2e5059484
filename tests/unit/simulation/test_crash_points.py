"""A crash at every single file operation of produce, roll, checkpoint, stop, start, retention and topic deletion.

One run of the scenario visits every crash point: before each operation takes effect, the disk is copied as a crash at
this point would leave it, and a new broker's log directory is opened on the copy. It must have everything promised so
far: after a kill everything appended (``os``), after a power cut everything flushed (``disk``), except what may have
expired. The log must be sound, have a possible start, take further appends, and leave no stray file.

Behind that, partitions are recovered one by one as worker processes do it, and taken into service; the next crash comes
at each file operation of that. `make test` visits every eighth or so of these points, `make soak` each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery import SET_ASIDE_SUFFIX
from seglog_broker.storage.log.recovery_job import recover_partition
from seglog_broker.storage.log.truncation import DeletionRule
from seglog_broker.testing import forgetful
from seglog_protocol import segment_files
from tests.logs import ManualClock, append_one, batch, opened_directory, read_around, verify
from tests.soundness import assert_directory_sound
from tests.unit.broker.storage.directory.directories import opened
from tests.unit.broker.storage.steps import create_topic, delete_topic, save_state
from tests.unit.simulation.crashes import crash_points

_TOPIC_CONFIG = {"segment.bytes": "1024", "index.interval.bytes": "150", "segment.ms": "1000000000"}

Key = tuple[str, int]
Opened = Callable[[forgetful.ForgetfulFileSystem], LogDirectory]


@dataclass
class Promises:
    """The acks and replies of the broker so far."""

    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    written: dict[Key, list[tuple[int, bytes]]] = field(default_factory=dict)  # acked at os
    durable: dict[Key, int] = field(default_factory=dict)  # acked at disk: everything below
    starts: dict[Key, tuple[int, int]] = field(
        default_factory=dict
    )  # the least and the greatest log start there may be


def write_checkpoints(fs: forgetful.ForgetfulFileSystem, directory: LogDirectory) -> None:
    for path, content in directory.partitions.encoded_checkpoints():
        write_file_atomically(fs, path, content)


class Scenario:
    """Two topics are created, written to across rolls and flushed now and then; one is deleted; the broker restarts."""

    def __init__(self, fs: forgetful.ForgetfulFileSystem) -> None:
        self.fs = fs
        self.promises = Promises()

    def run(self) -> None:
        directory = opened_directory(self.fs)
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
        directory = opened_directory(self.fs)
        for number in range(30, 45):
            self.append(directory, ("orders", 0), number)
        self.flush(directory.logs["orders", 0], ("orders", 0))
        assert directory.close() == []

    def create(self, directory: LogDirectory, topic: str, partitions: int) -> None:
        create_topic(directory, topic, partitions, dict(_TOPIC_CONFIG))
        self.promises.topics.add(topic)
        for partition in range(partitions):
            self.promises.written[topic, partition] = []
            self.promises.durable[topic, partition] = 0
            self.promises.starts[topic, partition] = (0, 0)

    def append(self, directory: LogDirectory, key: Key, number: int) -> None:
        value = f"value {number}".encode() + b"." * (number % 5 * 20)
        appended = append_one(directory.logs[key], batch(value, timestamp=1000 + number))
        self.promises.written[key].append((appended.base_offset, value))

    def flush(self, log: PartitionLog, key: Key) -> None:
        log.flusher.flush()
        self.promises.durable[key] = log.log_end_offset

    def checkpoint(self, directory: LogDirectory) -> None:
        for key, log in directory.logs.items():
            flush: Flush = log.flusher.prepare_checkpoint()
            flush.run()
            log.finish_flush(flush, None)
            directory.partitions.note_recovery_point(key, flush.end_offset)
        write_checkpoints(self.fs, directory)

    def delete(self, directory: LogDirectory, topic: str) -> None:
        for path in self.mark_deleted(directory, topic):
            self.fs.remove_tree(path)

    def mark_deleted(self, directory: LogDirectory, topic: str) -> list[str]:
        """Delete a topic, without removing its files."""
        self.promises.topics.discard(topic)  # from here on it may be there or not
        doomed = delete_topic(directory, directory.registry.topics[topic])
        self.promises.deleted.add(topic)
        write_checkpoints(self.fs, directory)
        return doomed


class Shortening(Scenario):
    """Logs lose their oldest segments in every possible way; a topic's files wait while another topic gets its name."""

    def run(self) -> None:
        clock = ManualClock()
        directory = opened_directory(self.fs, clock=clock)
        self.create(directory, "orders", 2)
        first, second = ("orders", 0), ("orders", 1)
        for number in range(36):
            self.append(directory, ("orders", number % 2), number)
        self.flush(directory.logs[first], first)
        early = self.drop(directory, {first: 1, second: 1})
        for number in range(36, 44):
            self.append(directory, second, number)
        save_state(directory.logs[second])
        self.truncate_before(directory, second, 13)
        clock.now += 10**9 + 1
        for key in (first, second):
            assert directory.logs[key].roller.roll_if_idle()
        self.checkpoint(directory)
        self.append(directory, first, 44)
        late = self.drop(directory, {first: len(directory.logs[first].segments)})  # with a roll, and unflushed
        early[first].remove()
        early[second].remove()
        self.append(directory, first, 45)
        self.create(directory, "doomed", 1)
        for number in range(12):
            self.append(directory, ("doomed", 0), number)
        self.truncate_before(directory, ("doomed", 0), 9)
        waiting = self.mark_deleted(directory, "doomed")
        self.promises.deleted.discard("doomed")
        self.create(directory, "doomed", 1)
        self.append(directory, ("doomed", 0), 1)
        for path in waiting:
            self.fs.remove_tree(path)
        late[first].remove()
        # Dropped and not set aside when the broker stops: the next one finishes.
        directory.logs[second].truncation.drop_oldest(1)
        start = directory.logs[second].log_start_offset
        self.promises.starts[second] = (self.promises.starts[second][0], start)
        assert directory.close() == []
        for key, written in self.promises.written.items():
            self.promises.durable[key] = max((offset for offset, _ in written), default=-1) + 1
        self.promises.starts[second] = (start, start)
        directory = opened_directory(self.fs, clock=clock)
        self.expire_below_start(directory)
        self.append(directory, second, 46)
        assert directory.close() == []

    def drop(self, directory: LogDirectory, counts: dict[Key, int]) -> dict[Key, DeletedSegments]:
        """As the retention task does, up to the delay."""
        doomed = {}
        for key, count in counts.items():
            log = directory.logs[key]
            end = log.log_end_offset
            low, _ = self.promises.starts[key]
            follows = log.segments[count].base_offset if count < len(log.segments) else end
            self.promises.starts[key] = (low, max(low, follows))
            doomed[key] = log.truncation.drop_oldest(count)
            write_checkpoints(self.fs, directory)  # as another task may at any moment
            save_state(log)
            assert log.log_end_offset == end
        write_checkpoints(self.fs, directory)
        for key in counts:
            _, high = self.promises.starts[key]
            self.promises.starts[key] = (high, high)
        for segments in doomed.values():
            segments.set_aside()
        write_checkpoints(self.fs, directory)  # as another task may at any moment
        return doomed

    def expire_below_start(self, directory: LogDirectory) -> None:
        """Segments that an earlier run dropped, but did not remove."""
        for segments in _drop_below_start(self.fs, directory):
            segments.remove()

    def truncate_before(self, directory: LogDirectory, key: Key, offset: int) -> None:
        low, _ = self.promises.starts[key]
        self.promises.starts[key] = (low, offset)
        assert directory.logs[key].truncate_before(offset) == offset
        write_checkpoints(self.fs, directory)
        self.promises.starts[key] = (offset, offset)


def _drop_below_start(fs: forgetful.ForgetfulFileSystem, directory: LogDirectory) -> list[DeletedSegments]:
    doomed = []
    for log in directory.logs.values():
        below = sum(verdict.rule is DeletionRule.LOG_START for _, verdict in log.retention.judge_segments())
        if below:
            doomed.append(log.truncation.drop_oldest(below))
            save_state(log)
    write_checkpoints(fs, directory)
    for segments in doomed:
        segments.set_aside()
    return doomed


def check(found: forgetful.ForgetfulFileSystem, promises: Promises, *, kept: bool, opened: Opened) -> None:
    """Open the files after a crash and compare them with the promises; ``kept``: all written bytes survived."""
    directory = opened(found)
    assert directory.report.offline == {}
    # A roll makes the .log first, but a power cut may keep another name alone: nothing of it was promised then.
    assert [p for p in directory.report.problems if kept or ".log is missing, its index files exist" not in p] == []
    known = set(directory.registry.topics)
    assert promises.topics <= known
    assert not promises.deleted & known
    for topic in promises.topics:
        for key in (key for key in promises.written if key[0] == topic):
            log = directory.logs[key]
            verify(found, log)
            records = {record.offset: record.value for record in read_around(log)}
            least, greatest = promises.starts[key]
            assert least <= log.log_start_offset <= greatest, key
            written = {offset: value for offset, value in promises.written[key] if offset >= log.log_start_offset}
            promised = set(written) if kept else {offset for offset in written if offset < promises.durable[key]}
            assert log.log_end_offset >= promises.durable[key], "offsets are not handed out twice"
            assert not [
                d for d in log.state.damaged if d.end_offset > greatest and d.start_offset < promises.durable[key]
            ]
            assert set(log.state.rolls) <= {segment.base_offset for segment in log.segments[:-1]}
            assert promised <= set(records), f"lost in {key}: {sorted(promised - set(records))}"
            # At most one batch was under way when the crash came.
            assert len(set(records) - set(written)) <= 1
            assert all(records[offset] == written[offset] for offset in set(records) & promised)
            # No checksum of a batch covers its offset: one that was not synced may lose bytes of that alone.
            assert set(records.values()) <= {*written.values(), *(records[o] for o in set(records) - set(written))}
    _check_no_stray_files(found, directory)
    for segments in _drop_below_start(found, directory):
        segments.remove()
    _check_no_stray_files(found, directory)
    for log in directory.logs.values():
        assert log.segments[0].base_offset <= log.log_start_offset
        assert len(log.segments) == 1 or log.segments[1].base_offset > log.log_start_offset
    for log in directory.logs.values():
        before = log.log_end_offset
        assert append_one(log, batch(b"after the crash")).base_offset == before
    ends = {key: log.log_end_offset for key, log in directory.logs.items()}
    assert directory.close() == []
    assert_directory_sound(found, "/data")
    again = opened_directory(found)
    assert again.report.clean
    assert {key: log.log_end_offset for key, log in again.logs.items()} == ends
    for log in again.logs.values():
        verify(found, log)
    again.close()
    assert found.open_files == []


def _check_no_stray_files(fs: forgetful.ForgetfulFileSystem, directory: LogDirectory) -> None:
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
    for path in directory.report.deleted_directories:
        fs.remove_tree(path)
    directory.report.deleted_directories.clear()
    assert set(fs.list_directory("/data")) - own == partitions
    for key, log in directory.logs.items():
        expected = {
            segment_files.segment_file_name(segment.base_offset, suffix)
            for segment in log.segments
            for suffix in (".log", ".index", ".timeindex")
        }
        bounds = [*(segment.base_offset for segment in log.segments), log.log_end_offset]
        allowed = {"leader-epoch-checkpoint", "partition.metadata", "seglog-partition.json"}
        for segment, following in pairwise(log.segments):
            # Of one that was about to leave the log, any name may have changed already.
            is_leaving = following.base_offset <= log.log_start_offset
            name = segment_files.segment_file_name(segment.base_offset, segment_files.CHECKSUM_SUFFIX)
            (allowed if is_leaving else expected).add(name)
        allowed |= {segment_files.segment_file_name(offset, segment_files.SNAPSHOT_SUFFIX) for offset in bounds}
        found = set(fs.list_directory(f"/data/{filenames.partition_directory_name(*key)}"))
        found = {name for name in found if SET_ASIDE_SUFFIX not in name}  # of a batch that is whole in length alone
        assert expected <= found
        assert found - expected <= allowed


def _opened_behind(fs: forgetful.ForgetfulFileSystem) -> LogDirectory:
    """Open the directory, and recover and serve its partitions as worker processes would."""
    directory = opened(fs, in_line_bytes=0)
    for key, job in list(directory.recovering.items()):
        directory.finish_recovery(key, recover_partition(fs, ManualClock(), job))
        write_checkpoints(fs, directory)
    return directory


@pytest.mark.parametrize(
    ("opened", "policy", "every"),
    [
        pytest.param(opened_directory, forgetful.PROCESS_KILL, 9, id="process kill, every ninth"),
        pytest.param(opened_directory, forgetful.POWER_LOSS, 8, id="power loss, every eighth"),
        pytest.param(_opened_behind, forgetful.POWER_LOSS, 11, id="power loss, behind, every eleventh"),
        *(
            pytest.param(opened, policy, 1, id=f"{policy}, {opened.__name__}", marks=pytest.mark.soak)
            for opened, seeds in ((opened_directory, range(5)), (_opened_behind, [7]))
            for policy in (forgetful.PROCESS_KILL, forgetful.POWER_LOSS, *map(forgetful.RANDOM, seeds))
        ),
    ],
)
@pytest.mark.parametrize("kind", [Scenario, pytest.param(Shortening, marks=pytest.mark.soak)])
def test_a_crash_before_any_operation_loses_nothing_promised(
    kind: type[Scenario], opened: Opened, policy: forgetful.CrashPolicy, every: int
) -> None:
    """Also where the partitions are recovered behind the start, as worker processes do it."""
    fs = forgetful.ForgetfulFileSystem()
    scenario, kept = kind(fs), policy is forgetful.PROCESS_KILL
    unclean = 0

    def opened_here(found: forgetful.ForgetfulFileSystem) -> LogDirectory:
        nonlocal unclean
        directory = opened(found)
        unclean += not directory.report.clean
        return directory

    with crash_points(
        fs, lambda: check(fs.found_after(policy), scenario.promises, kept=kept, opened=opened_here), every
    ) as points:
        scenario.run()
    assert points.visited > 200
    assert unclean > 100 // every


class _ComeFarEnoughError(Exception):
    """Ends the scenario at the wanted step."""


def _left_by(kind: type[Scenario], after: int) -> tuple[forgetful.ForgetfulFileSystem, Promises]:
    """The disk after a kill before operation ``after``, with unsynced bytes still unsynced."""
    fs = forgetful.ForgetfulFileSystem()
    scenario = kind(fs)

    def stop_here(operation: forgetful.Operation) -> None:
        if operation.number >= after:
            raise _ComeFarEnoughError

    fs.on_operation = stop_here
    with pytest.raises(_ComeFarEnoughError):
        scenario.run()
    fs.on_operation = None
    return fs.found_after(forgetful.PROCESS_KILL), scenario.promises


@pytest.mark.parametrize(
    "policy",
    [forgetful.PROCESS_KILL, forgetful.POWER_LOSS, forgetful.RANDOM(3)],
    ids=["process kill", "power loss", "random"],
)
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("after", [120, 190])
def test_a_crash_in_the_middle_of_a_recovery_loses_nothing_promised(
    after: int, every: int, policy: forgetful.CrashPolicy
) -> None:
    fs, promises = _left_by(Scenario, after)
    kept = policy is forgetful.PROCESS_KILL
    with crash_points(
        fs, lambda: check(fs.found_after(policy), promises, kept=kept, opened=_opened_behind), every
    ) as points:
        directory = _opened_behind(fs)
    assert points.visited > 30
    for key, log in directory.logs.items():
        promises.durable[key] = log.log_end_offset  # what is served is on the disk
    check(fs.found_after(forgetful.POWER_LOSS), promises, kept=False, opened=_opened_behind)
    directory.abandon()
