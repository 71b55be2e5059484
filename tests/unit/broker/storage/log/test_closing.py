"""Logs that are closed together: what is synced when, and what the others have of one's trouble."""

import errno

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.closing import LOGS_A_ROUND, close_together
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Operation
from seglog_protocol.errors import StorageError
from tests.logs import TOPIC_ID, ManualClock, append_one, batch


class Logs:
    """Logs on one disk, in one handle pool, with a record each."""

    def __init__(self, count: int, *, handles_max: int = 512) -> None:
        self.fs = ForgetfulFileSystem()
        self.handles = HandlePool(self.fs, handles_max)
        self.directories = [f"/topic-{number}" for number in range(count)]
        for directory in self.directories:
            make_partition(self.fs, directory, TOPIC_ID)
        self.fs.sync_directory("/")
        self.open()
        for log in self.logs:
            append_one(log, batch(b"one"))

    def open(self) -> None:
        """As after a clean stop."""
        self.logs = [
            PartitionLog(load(self.fs, self.handles, ManualClock(), directory, TopicConfig(), clean=True))
            for directory in self.directories
        ]

    def close(self) -> list[Exception | None]:
        """All together."""
        return close_together(self.fs, self.handles, [log.closing() for log in self.logs])

    def close_recorded(self) -> list[Operation]:
        """The changes that closing makes."""
        done: list[Operation] = []
        self.fs.on_operation = done.append
        assert self.close() == [None] * len(self.logs)
        self.fs.on_operation = None
        return done


def test_records_of_all_are_synced_before_any_state_is_written() -> None:
    done = Logs(3).close_recorded()
    synced = [at for at, each in enumerate(done) if each.name == "fdatasync" and each.path.endswith(".log")]
    written = [at for at, each in enumerate(done) if each.path.endswith((".json.tmp", ".snapshot.tmp"))]
    assert len(synced) == 3
    assert max(synced) < min(written)


def test_temporary_files_of_all_are_synced_before_the_first_rename_and_each_directory_once() -> None:
    logs = Logs(3)
    logs.close_recorded()
    logs.open()
    for log in logs.logs:
        append_one(log, batch(b"two"))
    done = logs.close_recorded()
    renames = [at for at, each in enumerate(done) if each.name == "rename"]
    temporary = [at for at, each in enumerate(done) if each.name == "fdatasync" and each.path.endswith(".tmp")]
    directories = [each.path for each in done if each.name == "sync_directory"]
    assert (len(temporary), len(renames)) == (6, 6), "snapshot and state of each"
    assert max(temporary) < min(renames)
    assert directories == logs.directories


def test_more_logs_than_a_round_are_closed_in_several() -> None:
    logs = Logs(LOGS_A_ROUND + 1)
    done = logs.close_recorded()
    last = f"{logs.directories[-1]}/00000000000000000000.log"
    synced = next(at for at, each in enumerate(done) if (each.name, each.path) == ("fdatasync", last))
    assert any(each.name == "rename" for each in done[:synced])
    logs.open()
    assert [log.log_end_offset for log in logs.logs] == [1] * len(logs.logs)


def test_a_state_that_is_as_the_last_stop_left_it_is_not_written() -> None:
    logs = Logs(2)
    logs.close_recorded()
    logs.open()
    append_one(logs.logs[1], batch(b"two"))
    renamed = [each.path for each in logs.close_recorded() if each.name == "rename"]
    assert {path.rpartition("/")[0] for path in renamed} == {"/topic-1"}
    logs.open()
    assert [log.state_file.state.held_end for log in logs.logs] == [1, 2]


def test_a_failed_write_of_one_concerns_it_alone() -> None:
    logs = Logs(3)

    def fail(operation: Operation) -> None:
        if operation.path == "/topic-1/seglog-partition.json.tmp":
            raise OSError(errno.EIO, "input/output error")

    logs.fs.on_operation = fail
    first, second, third = logs.close()
    assert (first, third) == (None, None)
    assert isinstance(second, StorageError)
    assert "/topic-1" in second.message
    assert not logs.handles.open_count


def test_few_handles_make_rounds_small() -> None:
    logs = Logs(12, handles_max=16)
    most = 0

    def look(_: Operation) -> None:
        nonlocal most
        most = max(most, logs.handles.open_count)

    logs.fs.on_operation = look
    assert logs.close() == [None] * 12
    assert most <= 16


def test_a_snapshot_that_finds_no_room_does_not_keep_the_state_from_the_disk() -> None:
    logs = Logs(1)
    logs.close_recorded()
    logs.open()
    append_one(logs.logs[0], batch(b"two"))
    logs.fs.limit_free_inodes(1)
    renamed = [each.path for each in logs.close_recorded() if each.name == "rename"]
    assert renamed == ["/topic-0/seglog-partition.json.tmp"]
    logs.fs.limit_free_inodes(None)
    assert not [name for name in logs.fs.list_directory("/topic-0") if name.endswith(".tmp")]
    logs.open()
    assert logs.logs[0].log_end_offset == 2
