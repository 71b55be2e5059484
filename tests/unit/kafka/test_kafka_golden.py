"""Directories that Kafka 4.3.1 wrote, opened by our storage engine: it answers what Kafka answered.

Where it means to answer otherwise, ``golden_differences`` says so by case and partition, and the tests here want
exactly our answer.

What is not compared because seglog has no such answer: producers, a request for the largest timestamp.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.partitions.fetch_response import gaps_of_read
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.messages import Gap
from seglog_protocol.record_batch import iter_batches, parse_header
from seglog_protocol.segment_files import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY, aborted_transaction, decode_snapshot
from tests.interop.golden import (
    CASES,
    INDEX_INTERVAL,
    Case,
    Compared,
    Row,
    adopted,
    batches_of,
    compare,
    digest,
    dumped_batches,
    fetch,
    is_out_of_range,
    largest_timestamp,
    load_case,
    log_of,
    packed_bytes,
    raw_bytes,
    read_everything,
    row_of,
    unpack,
)
from tests.interop.golden_differences import DIFFERENCES, WHOLE, Difference
from tests.support import each_case
from tests.unit.broker.storage.log.transactions import fetch_committed, read_committed

ANSWERED = tuple(name for name in CASES if name != "unclean")  # nobody asked the broker that was killed
STOPPED = tuple(name for name in ANSWERED if "-start" not in name and "-recovered" not in name)
"""Stopped in order and not edited: the directory is the one that Kafka answered from."""

KAFKAS_OWN_INTERVAL = 4096
"""``index.interval.bytes`` of ``__consumer_offsets`` and ``__transaction_state``."""
INTERVALS = [INDEX_INTERVAL, pytest.param(KAFKAS_OWN_INTERVAL, marks=pytest.mark.soak)]

_INDEXES = (".index", ".timeindex")


@dataclass(frozen=True)
class Opened:
    case: Case
    directory: Path
    logs: LogDirectory
    compared: dict[str, Compared]

    @property
    def answered(self) -> Iterator[tuple[str, PartitionLog, Any, Compared, Difference | None]]:
        """Partition, its log, what Kafka said, what we say, and where that is meant to differ."""
        known = DIFFERENCES.get(self.case.name, {})
        for name, kafka in self.case.answered.items():
            yield name, log_of(self.logs, name), kafka, self.compared[name], known.get(name)


@pytest.fixture(scope="module", params=ANSWERED)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A case in seglog's hands; not to be changed."""
    case = load_case(request.param)
    directory = tmp_path_factory.mktemp(case.name)
    unpack(case, directory)
    with adopted(directory) as logs:
        compared = {name: compare(log_of(logs, name), kafka) for name, kafka in case.answered.items()}
        yield Opened(case, directory, logs, compared)


def _left_of_the_whole(opened: Opened, difference: Difference, log_end: int) -> list[Row]:
    """The records of the untouched partition of the case, but for what the difference says is damaged."""
    rows = opened.compared[WHOLE[opened.case.name]].read.rows
    lost = difference.damaged or ()
    return [row for row in rows if row[0] < log_end and not any(start <= row[0] < end for start, end in lost)]


def _first_at(rows: list[Row], timestamp: int) -> tuple[int, int, int]:
    """(timestamp, offset, epoch) by looking at every record; every one here is of epoch 0."""
    return next(((row[1], row[0], 0) for row in rows if row[1] >= timestamp), (-1, -1, -1))


# --- The answers ------------------------------------------------------------------------------------------------------


_GONE: Final = {
    "damaged-clean-start": ["first-segment-gone-0: the records 0 to 47 are missing at the beginning of the log"],
    "damaged-unclean-start": [
        "last-log-gone-0: 00000000000000000210.log is missing",
        "stray-files-0: 00000000000000009999.log is missing",
    ],
}


def test_every_partition_is_adopted_with_its_id_and_keeps_everything(opened: Opened) -> None:
    assert not opened.logs.report.offline
    # Kafka takes a log without its first or last segment as it is; we do too, and say so where other files prove it.
    problems = opened.logs.report.problems
    assert [problem.partition(",")[0].partition(" (")[0] for problem in problems] == _GONE.get(opened.case.name, [])
    names = {name.rpartition("-")[0] for name in opened.case.partitions}
    assert set(opened.logs.registry.topics) == set(opened.logs.report.adopted) == names
    for name, facts in opened.case.partitions.items():
        topic = opened.logs.registry.topics[name.rpartition("-")[0]]
        assert facts["disk"]["partition_metadata"].endswith(topic.id)
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        own = {"cleanup.policy": "compact", "compression.type": "producer"}
        assert topic.config == (own if topic.name.startswith("__") else kept)


def test_the_log_begins_and_ends_where_kafka_says(opened: Opened) -> None:
    for name, log, kafka, ours, difference in opened.answered:
        start, end = kafka["log_start_offset"], kafka["high_watermark"]
        assert kafka["list_offsets"]["earliest"][2] == start == kafka["list_offsets"]["earliest_local"][2]
        if difference is not None:
            start = start if difference.log_start is None else difference.log_start
            end = end if difference.log_end is None else difference.log_end
        assert (ours.log_start, ours.log_end) == (start, end), name
        assert ours.same_bounds == (difference is None or {difference.log_start, difference.log_end} == {None}), name
        assert kafka["list_offsets"]["latest"][2] == kafka["high_watermark"]
        assert is_out_of_range(log, ours.log_start - 1)
        assert is_out_of_range(log, ours.log_end + 1)


def test_every_record_is_the_one_that_kafkas_consumer_got(opened: Opened) -> None:
    for name, _, kafka, ours, difference in opened.answered:
        told = kafka["records"]
        if difference is None or difference.damaged is None:
            assert ours.same_records, name
            assert not ours.read.damaged, name
        else:
            assert not ours.same_records, name
            assert ours.read.rows == _left_of_the_whole(opened, difference, ours.log_end), name
            assert tuple(ours.read.damaged) == difference.damaged, name
            # As far as Kafka's consumer got, it got the same.
            assert digest(ours.read.rows[: told["count"]]) == told["sha256"], name
            if difference.damaged:
                assert ours.read.before_damage == ours.read.rows[: told["count"]], name
        by_offset = {row[0]: row for row in ours.read.rows}
        for kind in ("all", "sample", "first", "last"):
            for row in told.get(kind, ()):
                assert by_offset[row[0]] == row, name


def test_a_moment_leads_to_the_record_that_kafka_names(opened: Opened) -> None:
    for name, _, kafka, ours, difference in opened.answered:
        answers = [tuple(answer[2:]) for answer in kafka["offsets_for_times"]]
        assert not any(error for _, error, *_ in kafka["offsets_for_times"])
        if difference is None or not difference.other_times:
            assert ours.times == answers, name
        else:
            assert ours.other_times == difference.other_times, name
            asked = [timestamp for timestamp, *_ in kafka["offsets_for_times"]]
            assert ours.times == [_first_at(ours.read.rows, timestamp) for timestamp in asked], name


def test_the_largest_timestamp_that_retention_goes_by_is_kafkas(opened: Opened) -> None:
    for name, log, kafka, ours, difference in opened.answered:
        found = largest_timestamp(log)
        kafkas = kafka["list_offsets"]["max_timestamp"][1]
        if difference is None or not difference.largest_timestamp:
            assert found == kafkas, name
        else:
            assert found != kafkas, name
            assert found == max(row[1] for row in ours.read.rows), name


@pytest.mark.parametrize("name", ["damaged-clean-start", "damaged-unclean-start"])
def test_a_segment_that_is_gone_leaves_a_gap_which_reads_step_over_and_name(name: str, tmp_path: Path) -> None:
    """Kafka steps over it too, without a word."""
    unpack(load_case(name), tmp_path)
    with adopted(tmp_path) as logs:
        log = log_of(logs, "middle-segment-gone-0")
        found = log.read(126, 1)
        assert found is not None
        found.release()
        assert found.start_offset == 174
        assert gaps_of_read(log, 126, found, log.log_end_offset, min_one=True) == ([Gap(126, 174, "missing")], None)


# --- Leader epochs ----------------------------------------------------------------------------------------------------


def test_leader_epochs_end_where_kafka_says(opened: Opened) -> None:
    """Kafka's own rise by two at each of its starts; ours stays after a clean stop."""
    for name, log, kafka, ours, _ in opened.answered:
        ends = [[epoch, 0, *log.epochs.end_offset_for(epoch, ours.log_end)] for epoch in range(5)]
        assert log.epochs.epoch_for(ours.log_start) == kafka["list_offsets"]["earliest"][3], name
        if opened.case.name in STOPPED:
            assert ends == kafka["epoch_ends"], name
            assert log.leader_epoch == kafka["list_offsets"]["latest"][3], name
            continue
        # A marker that promises records which are gone is no promise: their offsets come again, under another epoch.
        records_went = name in {"log-emptied-0", "last-log-gone-0"}
        current = 0 if opened.case.clean and not records_went else 1
        assert log.leader_epoch == current, name
        assert kafka["list_offsets"]["latest"][3] == 2, name
        none = [[epoch, 0, -1, -1] for epoch in range(current + 1, 5)]
        assert ends == [[epoch, 0, epoch, ours.log_end] for epoch in range(current + 1)] + none, name


# --- Batches and fetches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*STOPPED, "unclean"])
def test_every_batch_that_dump_log_lists_is_found_at_its_place(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    unpack(case, tmp_path)
    with adopted(tmp_path) as logs:
        for partition, facts in case.partitions.items():
            listed = dumped_batches(facts["disk"])
            log = log_of(logs, partition)
            assert batches_of(log) == listed, partition
            assert [segment.base_offset for segment in log.segments] == facts["disk"]["segments"], partition
            assert not log.state.damaged, partition
            if listed:
                assert log.log_end_offset == listed[-1][2] + 1, partition


def test_a_fetch_gives_kafkas_bytes_up_to_a_batch_boundary(opened: Opened) -> None:
    """Kafka cuts at the byte limit, wherever that falls; we end with a whole batch, an index entry sooner at most."""
    for name, log, kafka, ours, _ in opened.answered:
        for told in kafka.get("fetches", ()):
            offset, limit = told["offset"], told["partition_max_bytes"]
            assert is_out_of_range(log, offset) == (told["error"] == 1), (name, told)
            if told["error"]:
                continue
            got = fetch(log, offset, limit) or b""
            if offset >= kafka["last_stable_offset"] and offset < ours.log_end:
                # Kafka was asked for committed records only, and a transaction is open; we know of none.
                assert got, name
                assert not told["bytes"], name
                continue
            assert bool(got) == bool(told["bytes"]), (name, told)
            if not got:
                continue
            first = parse_header(got)
            assert first.base_offset == told["first_base_offset"], (name, told)
            assert first.base_offset <= first.last_offset
            assert first.last_offset >= offset
            batches = [header for header, _ in iter_batches(got)]
            assert sum(header.size for header in batches) == len(got), (name, told)
            whole = raw_bytes(log, offset, told["bytes"])
            assert hashlib.sha256(whole).hexdigest()[:16] == told["sha256"], (name, told)
            if batches[-1].next_offset <= kafka["last_stable_offset"]:
                assert whole.startswith(got), (name, told)
            largest = max(header.size for header, _ in iter_batches(whole)) if told["bytes"] > len(got) else 0
            assert told["bytes"] - len(got) <= INDEX_INTERVAL + 2 * largest, (name, told)


# --- Isolation --------------------------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_kafkas(opened: Opened) -> None:
    for name, log, kafka, _, difference in opened.answered:
        if difference is None:
            assert log.last_stable_offset == kafka["last_stable_offset"], name
            told = kafka.get("read_committed")
            assert told is None or told["list_latest"][2] == log.last_stable_offset, name


def test_a_fetch_names_the_aborted_transactions_that_kafka_names(opened: Opened) -> None:
    """Kafka takes the end of what it sends from its sparse index, and so names some that begin behind it; we do not."""
    for name, log, kafka, _, difference in opened.answered:
        for told in kafka.get("fetches", ()) if difference is None else ():
            if told["error"]:
                continue
            fetched = fetch_committed(log, told["offset"], told["partition_max_bytes"])
            assert bool(fetched.data) == bool(told["bytes"]), (name, told)
            end = max((header.next_offset for header, _ in iter_batches(fetched.data)), default=0)
            assert fetched.aborted == [each for each in told["aborted"] if each[1] < end], (name, told)


@each_case("bytes_max", [1, 1000, 1 << 20])
def test_the_committed_records_are_those_of_kafkas_consumer(opened: Opened, bytes_max: int) -> None:
    for name, log, kafka, _, difference in opened.answered:
        if difference is None:
            told = kafka.get("read_committed", kafka)["records"]
            rows = [row_of(record, header) for record, header in read_committed(log, bytes_max)]
            assert (len(rows), digest(rows)) == (told["count"], told["sha256"]), name


# --- Files ------------------------------------------------------------------------------------------------------------


def _partition_files(directory: Path) -> dict[str, bytes]:
    """Every file of every partition but our own, and what the start was free to remove."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.glob("*/*")
        if not path.name.startswith("seglog-") and path.suffix != ".deleted"
    }


def _without_passed_snapshots(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without those below the start of their log, which tell only of what has expired: a start removes them."""
    bases: dict[str, int] = {}
    for path in files:
        directory, _, name = path.rpartition("/")
        if name.endswith(".log"):
            bases[directory] = min(bases.get(directory, 2**63), int(Path(name).stem))
    return {
        path: content
        for path, content in files.items()
        if not path.endswith(SNAPSHOT_SUFFIX) or int(Path(path).stem) >= bases[path.rpartition("/")[0]]
    }


def _of_interval(interval: int, files: dict[str, bytes]) -> dict[str, bytes]:
    """Those of partitions that Kafka indexed so; an index can only be compared with one of the same interval."""
    return {path: data for path, data in files.items() if path.startswith("__") == (interval == KAFKAS_OWN_INTERVAL)}


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("interval", INTERVALS)
def test_opening_and_closing_changes_no_file_of_a_partition(name: str, interval: int, tmp_path: Path) -> None:
    unpack(load_case(name), tmp_path)
    before = _partition_files(tmp_path)
    with adopted(tmp_path, interval) as logs:
        for log in logs.logs.values():
            read_everything(log)
            largest_timestamp(log)
        assert logs.close() == []
    before = _without_passed_snapshots(before)
    assert _of_interval(interval, _partition_files(tmp_path)) == _of_interval(interval, before)


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("interval", INTERVALS)
def test_indexes_made_anew_are_kafkas_byte_for_byte(name: str, interval: int, tmp_path: Path) -> None:
    unpack(load_case(name), tmp_path)
    before = _partition_files(tmp_path)
    for path in tmp_path.glob("*/*"):
        if path.suffix in _INDEXES:
            path.unlink()
    with adopted(tmp_path, interval) as logs:
        assert logs.close() == []
    before = _without_passed_snapshots(before)
    assert _of_interval(interval, _partition_files(tmp_path)) == _of_interval(interval, before)


@pytest.mark.parametrize("name", ["damaged-clean-start", "damaged-unclean-start"])
def test_spoilt_indexes_become_what_kafka_had_written(name: str, tmp_path: Path) -> None:
    """Where Kafka leaves them spoilt. Where records are gone with their segment, so are its indexes."""
    case = load_case(name)
    unpack(case, tmp_path)
    with adopted(tmp_path) as logs:
        for log in logs.logs.values():
            read_everything(log)
            largest_timestamp(log)
        assert logs.close() == []
    seen = 0
    for partition in case.partitions:
        logs_left = {path.stem for path in (tmp_path / partition).glob("*.log") if path.stat().st_size}
        indexes = {path for path in (tmp_path / partition).iterdir() if path.suffix in _INDEXES and path.stat().st_size}
        assert {path.stem for path in indexes} <= logs_left
        for stem in logs_left:
            for suffix in _INDEXES:
                path = f"{partition}/{stem}{suffix}"
                assert (tmp_path / path).read_bytes() == packed_bytes(case.archive, path), path
                seen += 1
    assert seen == 2 * (20 * 6 - 4)


@pytest.mark.parametrize("name", ["unclean-recovered", "unclean-recovered-from-zero"])
def test_recovery_leaves_files_as_long_as_kafkas(name: str, tmp_path: Path) -> None:
    """Torn tails are cut at the same byte, pre-allocated indexes end with the same entry."""
    case = load_case(name)
    unpack(case, tmp_path)
    with adopted(tmp_path) as logs:
        assert logs.close() == []
    for partition, facts in case.partitions.items():
        found = {
            path.name: path.stat().st_size
            for path in (tmp_path / partition).iterdir()
            if path.suffix in {".log", *_INDEXES}
        }
        kafkas = {file: facts["disk"]["files"].get(file) for file in found}
        if (difference := DIFFERENCES[name].get(partition)) is not None and difference.log_end is not None:
            assert found != kafkas
            logs_before = {file: len(packed_bytes(case.archive, f"{partition}/{file}")) for file in found}
            assert all(found[file] == logs_before[file] for file in found if file.endswith(".log")), partition
        else:
            assert found == kafkas, partition


# --- The same directories on worse days -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STOPPED)
def test_without_marker_and_recovery_points_the_answers_are_the_same(name: str, tmp_path: Path) -> None:
    """Everything is read and checked, and nothing of it is found wanting."""
    case = load_case(name)
    unpack(case, tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    before = _of_interval(INDEX_INTERVAL, _partition_files(tmp_path))
    with adopted(tmp_path) as logs:
        for partition, kafka in case.answered.items():
            log = log_of(logs, partition)
            ours = compare(log, kafka)
            assert ours.same_bounds, partition
            assert ours.same_records, partition
            assert not ours.other_times, partition
            assert not [damage for damage in log.state.damaged if damage.reason == "damaged"], partition
        assert logs.close() == []
    after = _partition_files(tmp_path)
    changed = {path for path, content in before.items() if after.get(path) != content}
    snapshots = {path for path in changed if path.endswith(SNAPSHOT_SUFFIX)}
    indexes = {path for path in changed if path.endswith(TXN_INDEX_SUFFIX)}
    assert [path for path in changed - snapshots - indexes if not path.endswith("leader-epoch-checkpoint")] == []
    for path in indexes:  # the log has no longer the first batches of an aborted transaction that was compacted
        assert len(before[path]) == len(after[path])
        for number in range(len(before[path]) // TXN_INDEX_ENTRY.size):
            was, now = (aborted_transaction(files[path], number) for files in (before, after))
            assert was == now._replace(first_offset=was.first_offset)
            assert was.first_offset <= now.first_offset
    for path in snapshots & after.keys():
        known = {entry.producer_id for entry in decode_snapshot(after[path])}
        assert known >= {entry.producer_id for entry in decode_snapshot(before[path])}, path
