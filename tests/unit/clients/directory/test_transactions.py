"""Reading files at read_committed: against a plain model, whatever the files leave to be found out."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.directory.consumer import LogDirectory
from seglog.directory.partition import PartitionFiles
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.isolation import Aborted, Isolation
from seglog_protocol.segment_files import TXN_INDEX_SUFFIX
from tests.interop.golden import Row, load_case, row_of, unpack
from tests.logs import flip_bit
from tests.support import examples
from tests.transactions import Step, TransactionLog, steps
from tests.unit.clients.directory.files import make_partition


def read(log_directory: Path, topic: str, isolation: Isolation, *, start: int = 0, partition: int = 0) -> list[int]:
    """The offsets that a consumer gets; small pieces make it look where it goes on at every batch."""
    with LogDirectory(log_directory).consumer(
        topic, partitions=[partition], start=start, isolation=isolation, partition_bytes=1
    ) as consumer:
        found = [record.offset for batch in consumer.batches() for record in batch.records()]
        assert not list(consumer.gaps)
        assert consumer.records_behind() == {partition: 0}
        return found


@settings(max_examples=examples(400), deadline=None)
@given(steps, st.lists(st.integers(1, 39), max_size=5), st.booleans(), st.booleans(), st.integers(0, 60))
def test_what_was_committed_is_read_whatever_files_there_are(
    history: list[Step], cuts: list[int], indexes: bool, snapshots: bool, start: int
) -> None:
    log = TransactionLog(history)
    start = min(start, log.end)
    with tempfile.TemporaryDirectory() as folder:
        log.write(make_partition(Path(folder)), cuts, indexes=indexes, snapshots=snapshots)
        committed = read(Path(folder), "t", "read_committed", start=start)
        assert committed == [offset for offset in log.committed() if offset >= start]
        assert read(Path(folder), "t", "read_uncommitted", start=start) == [o for o in log.uncommitted() if o >= start]
        files = LogDirectory(Path(folder)).partition("t", 0)
        assert files.stable_end(files.ends()) == log.last_stable_offset


@settings(max_examples=examples(200), deadline=None)
@given(steps, steps, st.integers(1, 39), st.booleans())
def test_a_log_that_grows_is_looked_at_from_where_the_last_look_ended(
    before: list[Step], more: list[Step], cut: int, snapshots: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = make_partition(Path(folder))
        files = LogDirectory(Path(folder)).partition("t", 0)
        for history in (before, before + more):
            log = TransactionLog(history)
            log.write(directory, [cut], snapshots=snapshots)
            assert files.stable_end(files.ends()) == log.last_stable_offset
            expected = [(t.producer_id, t.first_offset, t.marker) for t in log.aborted()]
            found: list[tuple[int, ...]] = []
            at, limit = 0, 0
            while at < log.end:
                aborted, limit = files.aborted(at)
                found += [tuple(each) for each in aborted if tuple(each) not in found]
                at = limit
            assert sorted(found) == sorted(expected)  # a look at a part may name a later marker first


def test_compaction_after_a_look_at_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that compaction merges after the look at their transactions give nothing aborted."""
    log = TransactionLog([("data", 1, 1), ("commit", 1, 0), ("data", 1, 1), ("plain", 2, 1), ("abort", 1, 0)])
    directory = make_partition(tmp_path)
    log.write(directory, [2, 4])
    look = PartitionFiles.aborted

    def look_and_merge(files: PartitionFiles, offset: int) -> tuple[list[Aborted], int]:
        found = look(files, offset)
        for path in directory.iterdir():
            path.unlink()
        log.write(directory, [4])
        return found

    monkeypatch.setattr(PartitionFiles, "aborted", look_and_merge)
    with LogDirectory(tmp_path).consumer("t", isolation="read_committed", partition_bytes=1000) as consumer:
        assert [record.offset for batch in consumer.batches() for record in batch.records()] == [0, 3]


@pytest.mark.parametrize("content", [b"", b"\0" * 33, b"\1" * 34, b"\0" * 68, None, *range(0, 8 * 34, 7)])
def test_a_transaction_index_that_is_not_as_it_was_written_is_replaced_by_a_look_at_the_log(
    tmp_path: Path, content: bytes | int | None
) -> None:
    """Other bytes, none, or one bit."""
    log = TransactionLog([("data", 1, 2), ("abort", 1, 0), ("data", 1, 1), ("commit", 1, 0)])
    directory = make_partition(tmp_path)
    log.write(directory, [3])
    (index,) = directory.glob(f"*{TXN_INDEX_SUFFIX}")
    if content is None:
        index.unlink()
    elif isinstance(content, int):
        flip_bit(PosixFileSystem(), str(index), *divmod(content, 8))
    else:
        index.write_bytes(content)
    assert read(tmp_path, "t", "read_committed") == [3]


def test_no_time_beyond_the_last_stable_offset_is_found(tmp_path: Path) -> None:
    log = TransactionLog([("plain", 0, 2), ("data", 1, 2)])
    log.write(make_partition(tmp_path))
    for start, expected in (("@1001", [1]), ("@1002", [])):
        with LogDirectory(tmp_path).consumer(
            "t", start=start, isolation="read_committed", partition_bytes=1000
        ) as consumer:
            assert [record.offset for batch in consumer.batches() for record in batch.records()] == expected
            assert consumer.positions() == {0: 2}


def test_an_unknown_isolation_is_refused_by_name(tmp_path: Path) -> None:
    make_partition(tmp_path)
    with pytest.raises(ValueError, match="isolation is 'read_uncommitted' or 'read_committed', not 'committed'"):
        LogDirectory(tmp_path).consumer("t", isolation="committed", partition_bytes=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_indexes", [True, False])
def test_kafkas_directory_is_read_as_kafka_reads_it_at_both_isolations(tmp_path: Path, has_indexes: bool) -> None:
    case = load_case("transactions")
    unpack(case, tmp_path)
    if not has_indexes:
        for index in tmp_path.glob(f"*/*{TXN_INDEX_SUFFIX}"):
            index.unlink()
    for name, answers in case.answered.items():
        if not answers:
            continue
        topic, _, number = name.rpartition("-")
        files = LogDirectory(tmp_path).partition(topic, int(number))
        assert files.stable_end(files.ends()) == answers["last_stable_offset"], name
        assert rows(tmp_path, topic, int(number), "read_committed") == answers["read_committed"]["records"]["all"], name
        assert rows(tmp_path, topic, int(number), "read_uncommitted") == answers["records"]["all"], name


def rows(log_directory: Path, topic: str, partition: int, isolation: Isolation) -> list[Row]:
    """The records of a partition, as the facts list them."""
    with LogDirectory(log_directory).consumer(
        topic, partitions=[partition], isolation=isolation, partition_bytes=16 * 1024
    ) as consumer:
        return [row_of(record, batch.header) for batch in consumer.batches() for record in batch.stored()]
