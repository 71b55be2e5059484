"""Segment files read without a broker: what is in them, and what Kafka and our storage engine read of them."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.records import ConsumerGap
from seglog.directory.consumer import LogDirectory
from seglog.directory.partition import PartitionFiles
from seglog_broker.storage.compaction.cleaned_segment import SegmentSwap
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_protocol.checkpoint_files import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    encode_offsets,
)
from seglog_protocol.errors import (
    CorruptRecordError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownPartitionError,
    UnknownTopicError,
)
from seglog_protocol.isolation import Aborted, Isolation
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import (
    AWAITED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    PARTITION_STATE_FILE,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    encode_time_entry,
    segment_file_name,
)
from tests.interop.golden import (
    MOST_CASES,
    Read,
    Row,
    adopted,
    load_case,
    log_of,
    offset_for_time,
    read_everything,
    row_of,
    unpack,
)
from tests.logs import flip_bit, old_message
from tests.support import examples
from tests.transactions import Step, TransactionLog, steps
from tests.unit.clients.directory.files import SECOND_MS, batch_at, make_partition, offsets_read, write_segment

FOUR = [batch_at(0), batch_at(1), batch_at(2), batch_at(3)]


def note(directory: Path, **state: object) -> None:
    (directory / PARTITION_STATE_FILE).write_text(json.dumps({"version": 1} | state))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_partition(tmp_path)


# --- The end ----------------------------------------------------------------------------------------------------------


@given(cut=st.integers(1, len(FOUR[3])), junk=st.binary(max_size=80), zeros=st.integers(0, 200))
def test_a_log_ends_where_its_batches_are_whole_whatever_follows(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, zeros: int
) -> None:
    base = tmp_path_factory.mktemp("torn")
    path = write_segment(make_partition(base), FOUR, 0, indexed=[2])
    torn = path.read_bytes()[:-cut] + junk + bytes(zeros)
    if torn.startswith(b"".join(FOUR)):
        return  # the junk is what was cut off
    path.write_bytes(torn)
    assert LogDirectory(base).partition("t", 0).ends()[:2] == (0, 3)
    assert offsets_read(base) == [0, 1, 2]


def test_an_end_is_looked_for_behind_the_last_one(
    tmp_path: Path,
) -> None:
    """An end is looked for behind the last one and found anew when that is not there any more."""
    path = write_segment(make_partition(tmp_path), FOUR[:1], 0)
    files = LogDirectory(tmp_path).partition("t", 0)
    assert files.ends().latest == 1
    path.write_bytes(b"".join(FOUR[:2]) + FOUR[2][:-1])
    assert files.ends().latest == 2
    path.write_bytes(b"".join(FOUR))
    assert files.ends().latest == 4
    path.write_bytes(FOUR[0] + batch_at(1, 5))  # a broker lost power, and went on from what was left
    assert files.ends().latest == 6
    path.write_bytes(b"")
    assert files.ends().latest == 0


def test_damage_with_whole_batches_behind_it_is_no_end_and_told_when_it_is_read(tmp_path: Path) -> None:
    broken = bytearray(FOUR[2])
    broken[-1] ^= 1
    write_segment(make_partition(tmp_path), [*FOUR[:2], bytes(broken), FOUR[3]], 0)
    assert LogDirectory(tmp_path).partition("t", 0).ends().latest == 4
    with pytest.raises(CorruptRecordError) as caught:
        offsets_read(tmp_path)
    assert (caught.value.start_offset, caught.value.next_offset) == (2, 3)
    assert offsets_read(tmp_path, 3) == [3]


def test_messages_of_kafkas_old_formats_are_named_rather_than_left_out(directory: Path, tmp_path: Path) -> None:
    path = write_segment(directory, [*FOUR[:2], old_message(2)], 0)
    with pytest.raises(CorruptRecordError, match=r"from offset 2 on t-0 has messages of before Kafka 0\.11"):
        offsets_read(tmp_path)
    path.write_bytes(old_message(0) + FOUR[1])
    with pytest.raises(CorruptRecordError, match="from offset 0 on t-0 has messages"):
        offsets_read(tmp_path)


def test_broken_lengths_are_stepped_over_where_an_index_leads_behind_them(directory: Path, tmp_path: Path) -> None:
    broken = FOUR[1][:8] + bytes(4) + FOUR[1][12:]
    write_segment(directory, [FOUR[0], broken, FOUR[2], FOUR[3]], 0, indexed=[2])
    write_segment(directory, [batch_at(4)], 4)
    with pytest.raises(CorruptRecordError, match="offsets 1 to 1 of t-0 cannot be read") as caught:
        offsets_read(tmp_path)
    assert offsets_read(tmp_path, caught.value.next_offset) == [2, 3, 4]
    (directory / "00000000000000000000.index").unlink()
    with pytest.raises(CorruptRecordError, match="offsets 1 to 1 of t-0 cannot be read"):
        offsets_read(tmp_path)
    note(directory, damaged=[damage(1, 2, len(FOUR[0]), len(FOUR[0]) + len(broken))])
    with pytest.raises(CorruptRecordError, match="offsets 1 to 1 of t-0 cannot be read"):
        offsets_read(tmp_path)
    assert offsets_read(tmp_path, 2) == [2, 3, 4]


@pytest.mark.soak
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_of_bits_of_a_batch_that_batch_is_lost_and_no_other(tmp_path: Path, number: int, piece_bytes: int) -> None:
    sizes = [1, 3, 2, 1, 2]
    bases = [sum(sizes[:n]) for n in range(len(sizes))]
    batches = [batch_at(base, count) for base, count in zip(bases, sizes, strict=True)]
    path = write_segment(make_partition(tmp_path), batches, 0, indexed=[2])
    write_segment(path.parent, [batch_at(sum(sizes))], sum(sizes))
    sizes.append(1)
    whole, begins = path.read_bytes(), sum(map(len, batches[:number]))
    lost = set(range(bases[number], bases[number] + sizes[number]))
    for place in [0, 3, 6, 7, 8, 9, 10, 11, 16, 17, 21, 22, 23, 24, 25, 26, 57, 60, 65]:
        for bit in (0, 1, 7):
            broken = bytearray(whole)
            broken[begins + place] ^= 1 << bit
            path.write_bytes(broken)
            for start in (0, bases[number] + sizes[number] - 1):
                found, told, at = list[int](), set[int](), start
                while True:
                    gaps: list[ConsumerGap] = []
                    try:
                        read_into(found, tmp_path, at, gaps, piece_bytes)
                        break
                    except CorruptRecordError as error:
                        assert error.next_offset > at  # noqa: PT017 - it is expected
                        told |= set(range(max(at, error.start_offset), error.next_offset))
                        at = error.next_offset
                    finally:
                        told |= {offset for gap in gaps for offset in range(gap.start, gap.end)}
                assert found == [offset for offset in range(start, sum(sizes)) if offset not in lost], (place, bit)
                assert told == {offset for offset in lost if offset >= start}, (place, bit)


def read_into(found: list[int], log_directory: Path, start: int, gaps: list[ConsumerGap], piece_bytes: int) -> None:
    """As ``offsets_read``; what was read before an error counts."""
    with LogDirectory(log_directory).consumer(
        "t", start={0: start}, on_gap=gaps.append, partition_bytes=piece_bytes
    ) as consumer:
        for batch in consumer.batches():
            found += [record.offset for record in batch.records()]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
@pytest.mark.parametrize("risen_by", [1, 2, 1 << 40])
def test_an_offset_that_rose_at_the_end_of_a_closed_segment_is_damage(
    tmp_path: Path, piece_bytes: int, risen_by: int
) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, [FOUR[0], batch_at(1 + risen_by)], 0)
    write_segment(directory, FOUR[2:], 2)
    with pytest.raises(CorruptRecordError, match="offsets 1 to 1 of t-0 cannot be read") as caught:
        offsets_read(tmp_path, piece_bytes=piece_bytes)
    assert offsets_read(tmp_path, caught.value.next_offset, piece_bytes=piece_bytes) == [2, 3]


def damage(start: int, end: int, position: int, end_position: int) -> dict[str, object]:
    places = {"segment": 0, "position": position, "end_position": end_position}
    return {"start_offset": start, "end_offset": end, "reason": "damaged"} | places


def test_an_index_that_lies_costs_a_walk_and_no_record(tmp_path: Path) -> None:
    path = write_segment(make_partition(tmp_path), FOUR, 0, indexed=[1, 3])
    index = path.with_suffix(".index")
    entries = index.read_bytes()
    for wrong in (entries[:-3], entries[8:] + entries[:8], entries[:4] + b"\0\0\0\7" + entries[8:], bytes(16)):
        index.write_bytes(wrong)
        assert offsets_read(tmp_path) == [0, 1, 2, 3]
    index.write_bytes(entries + bytes(4096))  # of a Kafka that is running
    assert offsets_read(tmp_path, 2) == [2, 3]


# --- Both ends, and what is durable -----------------------------------------------------------------------------------


def test_checkpoints_say_where_a_log_begins_and_what_is_durable(directory: Path, tmp_path: Path) -> None:
    write_segment(directory, FOUR[1:], 1)
    files = LogDirectory(tmp_path).partition("t", 0)
    assert files.ends() == (1, 4, 1)
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(encode_offsets({("t", 0): 2, ("other", 0): 9}))
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(encode_offsets({("t", 0): 3}))
    assert files.ends() == (2, 4, 3)
    note(directory, log_start_reason="truncated")
    with pytest.raises(OffsetOutOfRangeError, match="the log begins at 2") as caught:
        offsets_read(tmp_path, 1)
    assert (caught.value.earliest, caught.value.latest, caught.value.reason) == (2, 4, "truncated")
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"no checkpoint")
    assert files.ends().earliest == 1


# --- Holes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", ["seglog", "kafka", "nobody"])
def test_a_hole_is_compacted_where_compaction_is_known_to_have_been_and_else_missing(
    tmp_path: Path, noted: str
) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, [batch_at(0), batch_at(2)], 0)
    write_segment(directory, [batch_at(5)], 5)
    if noted == "seglog":
        note(directory, compacted_before=4)
    elif noted == "kafka":
        (tmp_path / CLEANER_CHECKPOINT).write_bytes(encode_offsets({("t", 0): 4}))
    gaps: list[ConsumerGap] = []
    assert offsets_read(tmp_path, gaps=gaps) == [0, 2, 5]
    told = [(gap.start, gap.end, gap.reason) for gap in gaps]
    if noted == "nobody":
        assert told == [(1, 2, "missing"), (3, 5, "missing")]
    else:
        assert told == [(1, 2, "compacted"), (3, 4, "compacted"), (4, 5, "missing")]


# --- While a broker is at work ----------------------------------------------------------------------------------------


def test_what_is_open_is_read_to_its_end_and_what_expired_meanwhile_is_told(directory: Path, tmp_path: Path) -> None:
    paths = [write_segment(directory, [batch_at(base), batch_at(base + 1)], base) for base in (0, 2, 4, 6)]
    with LogDirectory(tmp_path).consumer("t", partition_bytes=1) as consumer:
        batches = consumer.batches()
        assert next(batches).header.base_offset == 0
        for path in paths[:3]:
            path.rename(path.with_name(path.name + DELETED_SUFFIX))
        assert next(batches).header.base_offset == 1
        with pytest.raises(OffsetOutOfRangeError, match="the log begins at 6"):
            next(batches)


def test_a_segment_that_is_still_in_a_backup_is_told_and_those_behind_it_are_read(
    directory: Path, tmp_path: Path
) -> None:
    paths = [write_segment(directory, [batch_at(base), batch_at(base + 1)], base) for base in (0, 2)]
    paths[0].write_bytes(bytes(paths[0].stat().st_size))
    paths[0].with_suffix(AWAITED_SUFFIX).touch()
    assert offsets_read(tmp_path, 2) == [2, 3]
    with pytest.raises(StorageError, match="the segment 0 of t-0 is still in the backup"):
        offsets_read(tmp_path)


def test_a_partition_that_is_deleted_under_its_reader_is_told(directory: Path, tmp_path: Path) -> None:
    write_segment(directory, FOUR[:2], 0)
    write_segment(directory, FOUR[2:], 2)
    with LogDirectory(tmp_path).consumer("t", partition_bytes=1) as consumer:
        batches = consumer.batches()
        next(batches)
        directory.rename(tmp_path / "t-0.0123-delete")
        assert next(batches).header.base_offset == 1
        with pytest.raises(UnknownPartitionError, match="t-0 has no directory"):
            next(batches)
    with pytest.raises(UnknownTopicError):
        offsets_read(tmp_path)


@pytest.mark.parametrize("first_step", range(4))
@pytest.mark.parametrize("start", [0, 2, 3])
def test_compaction_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_step: int, start: int
) -> None:
    """A compacted segment is put in its place between any two looks and nothing is passed over."""
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR[:2], 0)
    write_segment(directory, FOUR[2:], 2)
    write_segment(directory, [batch_at(4)], 4)
    left = directory / f"00000000000000000000.log{CLEANED_SUFFIX}"
    left.write_bytes(FOUR[1] + FOUR[3])
    note(directory, compacted_before=4)
    swap = SegmentSwap(PosixFileSystem(), str(directory), (0, 2))
    swap.promote()
    steps = list(_renames(swap))
    listed = PartitionFiles._segments
    looks = 0

    def look(files: PartitionFiles) -> dict[int, str]:
        nonlocal looks
        looks += 1
        if looks > first_step and steps:
            old, new = steps.pop(0)
            Path(old).rename(new)
        return listed(files)

    monkeypatch.setattr(PartitionFiles, "_segments", look)
    gaps: list[ConsumerGap] = []
    read = offsets_read(tmp_path, start, gaps=gaps)
    assert [offset for offset in read if offset in {1, 3, 4}] == [offset for offset in (1, 3, 4) if offset >= start]
    assert {gap.reason for gap in gaps} <= {"compacted"}


def _renames(swap: SegmentSwap) -> list[tuple[str, str]]:
    """What ``install`` does, one step at a time."""
    moves: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixFileSystem, "rename", lambda _, old, new: moves.append((old, new)))
        swap.install()
    return moves


def test_names_that_never_rest_end_in_an_error_that_invites_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR, 0)
    monkeypatch.setattr("seglog.directory.partition.time.sleep", lambda _: None)
    monkeypatch.setattr(PartitionFiles, "_segments", lambda _: {0: "00000000000000000000.log" + SWAP_SUFFIX})
    with pytest.raises(StorageError, match="change faster than they can be looked at") as caught:
        LogDirectory(tmp_path).partition("t", 0).ends()
    assert caught.value.retriable


# --- The directory ----------------------------------------------------------------------------------------------------


def test_topics_are_told_from_the_names_of_directories(tmp_path: Path) -> None:
    for name in ("a-b-1", "a-b-0", "c-10", "t-0.f00-delete", "__cluster_metadata-0", "-3", "plain"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").touch()
    logs = LogDirectory(tmp_path)
    assert logs.topics() == {"a-b": [0, 1], "c": [10]}
    with pytest.raises(UnknownTopicError, match=r"no topic 'a-c' in .*; did you mean 'a-b'"):
        logs.partitions("a-c")
    with pytest.raises(LogDirectoryError, match="is not a directory on this machine"):
        LogDirectory(tmp_path / "nowhere")


def test_the_state_file_is_read_as_the_broker_writes_it(directory: Path, tmp_path: Path) -> None:
    write_segment(directory, FOUR, 0)
    state = PartitionState(compacted_before=7, log_start_reason="expired")
    (directory / PARTITION_STATE_FILE).write_bytes(state.encode())
    files = LogDirectory(tmp_path).partition("t", 0)
    assert files.holes().compacted_before == 7
    for nonsense in (b"", b"[]", b'{"compacted_before": "x"}', b'{"damaged": [{}]}'):
        (directory / PARTITION_STATE_FILE).write_bytes(nonsense)
        assert files.holes() == ([], 0, {})


@pytest.mark.soak
def test_no_bit_of_a_time_index_hides_a_record_from_a_look_up(directory: Path, tmp_path: Path) -> None:
    batches = [batch_at(number) for number in range(6)]
    write_segment(directory, batches, 0, indexed=[1, 2, 3, 4, 5])
    write_segment(directory, [batch_at(6)], 6)
    path = directory / segment_file_name(0, TIME_INDEX_SUFFIX)
    sound = b"".join(encode_time_entry(number * SECOND_MS, number) for number in range(1, 6))
    moments = [number * SECOND_MS + change for number in range(7) for change in (-1, 0, 1)]
    expected = [next((n for n in range(7) if n * SECOND_MS >= moment), None) for moment in moments]
    for position in range(len(sound)):
        for bit in range(8):
            content = bytearray(sound)
            content[position] ^= 1 << bit
            path.write_bytes(content)
            files = LogDirectory(tmp_path).partition("t", 0)
            assert [files.find_time(moment) for moment in moments] == expected, f"byte {position}, bit {bit}"
            files.close()


@pytest.mark.parametrize("noted", [{}, {"log_start": 0}, {"log_start": 0, "deleted_before": 0}])
def test_a_log_start_beyond_the_end_hides_no_record(directory: Path, tmp_path: Path, noted: dict[str, int]) -> None:
    write_segment(directory, FOUR, 0)
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"0\n1\nt 0 99\n")
    note(directory, **noted)
    files = LogDirectory(tmp_path).partition("t", 0)
    assert (files.ends().earliest, len(files.read(0, 1)) > 0) == (0, True)
    files.close()


def test_deleted_records_stay_deleted_without_their_checkpoint(directory: Path, tmp_path: Path) -> None:
    """Records that were deleted stay away when the checkpoint that says so is damaged."""
    write_segment(directory, FOUR, 0)
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"garbage")
    note(directory, deleted_before=2, log_start_reason="truncated")
    assert LogDirectory(tmp_path).partition("t", 0).ends().earliest == 2


def test_a_log_whose_first_segment_is_missing_begins_with_a_gap(directory: Path, tmp_path: Path) -> None:
    write_segment(directory, FOUR[2:], 2)
    missing = {"start_offset": 0, "end_offset": 2, "segment": 2, "position": 0, "end_position": 0, "reason": "missing"}
    note(directory, log_start=0, damaged=[missing])
    partition = LogDirectory(tmp_path).partition("t", 0)
    assert partition.ends()[:2] == (0, 4)
    assert offsets_read(tmp_path) == [2, 3]


# --- Reading files at read_committed: against a plain model, whatever the files leave to be found out -----------------


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


def test_kafkas_directory_is_read_as_kafka_reads_it_at_both_isolations(tmp_path: Path) -> None:
    case = load_case("transactions")
    unpack(case, tmp_path)
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


# --- Directories that Kafka wrote, read without a broker: the same rows, ends and times as from our storage engine ----


PIECE_BYTES = 16 * 1024


def read_files(path: Path, topic: str, partition: int) -> Read:
    """What a consumer that goes on behind every damaged range gets."""
    read = Read()
    start = None
    while True:
        with LogDirectory(path).consumer(
            topic, partitions=[partition], start=start, partition_bytes=PIECE_BYTES
        ) as consumer:
            try:
                for batch in consumer.batches():
                    first, end = batch.start_offset, batch.end_offset
                    records = decode_records(batch.header, batch.data)
                    read.rows += [row_of(record, batch.header) for record in records if first <= record.offset < end]
            except CorruptRecordError as error:
                assert error.next_offset > error.start_offset, "an error that leads nowhere"  # noqa: PT017
                read.damaged.append((error.start_offset, error.next_offset))
                start = {partition: error.next_offset}
                continue
            return read


@MOST_CASES
def test_topics_rows_ends_and_times_are_those_of_our_storage_engine(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    unpack(case, tmp_path)
    logs = LogDirectory(tmp_path)
    places = {f"{topic}-{number}": (topic, number) for topic, numbers in logs.topics().items() for number in numbers}
    assert set(places) == set(case.partitions)
    read = {directory: read_files(tmp_path, *place) for directory, place in places.items()}
    ends = {directory: logs.partition(*place).ends() for directory, place in places.items()}
    stable = {directory: logs.partition(*places[directory]).stable_end(end) for directory, end in ends.items()}
    times: list[tuple[str, int, int]] = []
    for directory, answers in case.answered.items():
        if read[directory].damaged:
            continue  # a damaged batch has no times here; the engine takes them as they are where it looked no closer
        files = logs.partition(*places[directory])
        for time, *_ in answers["offsets_for_times"]:
            found = files.find_time(time)
            times.append((directory, time, -1 if found is None else found))
    with adopted(tmp_path) as engine:
        for directory in places:
            log = log_of(engine, directory)
            assert read[directory].rows == read_everything(log).rows, directory
            # The engine gives no offset again that the files' marks speak of; here a log ends where its batches do.
            missing = [d for d in log.state.damaged if d.end_offset == log.log_end_offset]
            end = missing[0].start_offset if missing else log.log_end_offset
            # It also keeps the start where segments are missing, of which these files of Kafka's record nothing yet.
            lost = [
                d.end_offset for d in log.state.damaged if d.start_offset == log.log_start_offset and d not in missing
            ]
            start = lost[0] if lost else log.log_start_offset
            assert ends[directory][:2] == (start, end), directory
            assert stable[directory] == min(log.last_stable_offset, end), directory
        for directory, time, offset in times:
            assert offset == offset_for_time(log_of(engine, directory), time)[1], (directory, time)
