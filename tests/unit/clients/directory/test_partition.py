import json
from pathlib import Path

import pytest
from hypothesis import given
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
from seglog_protocol.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    PARTITION_STATE_FILE,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    encode_time_entry,
    segment_file_name,
)
from tests.logs import old_message
from tests.unit.clients.directory.files import SECOND_MS, batch_at, make_partition, offsets_read, write_segment

FOUR = [batch_at(0), batch_at(1), batch_at(2), batch_at(3)]


def note(directory: Path, **state: object) -> None:
    (directory / PARTITION_STATE_FILE).write_text(json.dumps({"version": 1} | state))


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


def test_messages_of_kafkas_old_formats_are_named_rather_than_left_out(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    path = write_segment(directory, [*FOUR[:2], old_message(2)], 0)
    with pytest.raises(CorruptRecordError, match=r"from offset 2 on t-0 has messages of before Kafka 0\.11"):
        offsets_read(tmp_path)
    path.write_bytes(old_message(0) + FOUR[1])
    with pytest.raises(CorruptRecordError, match="from offset 0 on t-0 has messages"):
        offsets_read(tmp_path)


def test_broken_lengths_are_stepped_over_where_an_index_leads_behind_them(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
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


def test_checkpoints_say_where_a_log_begins_and_what_is_durable(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
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


def test_a_time_leads_to_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, [batch_at(0, 3), batch_at(3, 3)], 0)
    write_segment(directory, [batch_at(6, 3)], 6)
    files = LogDirectory(tmp_path).partition("t", 0)
    for offset in range(9):
        assert files.find_time(offset * SECOND_MS) == files.find_time(offset * SECOND_MS - 1) == offset
    assert files.find_time(9 * SECOND_MS) is None


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


def test_what_is_open_is_read_to_its_end_and_what_expired_meanwhile_is_told(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    paths = [write_segment(directory, [batch_at(base), batch_at(base + 1)], base) for base in (0, 2, 4, 6)]
    with LogDirectory(tmp_path).consumer("t", partition_bytes=1) as consumer:
        batches = consumer.batches()
        assert next(batches).header.base_offset == 0
        for path in paths[:3]:
            path.rename(path.with_name(path.name + DELETED_SUFFIX))
        assert next(batches).header.base_offset == 1
        with pytest.raises(OffsetOutOfRangeError, match="the log begins at 6"):
            next(batches)


def test_a_partition_that_is_deleted_under_its_reader_is_told(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
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


def test_the_state_file_is_read_as_the_broker_writes_it(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR, 0)
    state = PartitionState(compacted_before=7, log_start_reason="expired")
    (directory / PARTITION_STATE_FILE).write_bytes(state.encode())
    files = LogDirectory(tmp_path).partition("t", 0)
    assert files.holes().compacted_before == 7
    for nonsense in (b"", b"[]", b'{"compacted_before": "x"}', b'{"damaged": [{}]}'):
        (directory / PARTITION_STATE_FILE).write_bytes(nonsense)
        assert files.holes() == ([], 0, {})


@pytest.mark.soak
def test_no_bit_of_a_time_index_hides_a_record_from_a_look_up(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
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
def test_a_log_start_beyond_the_end_hides_no_record(tmp_path: Path, noted: dict[str, int]) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR, 0)
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"0\n1\nt 0 99\n")
    note(directory, **noted)
    files = LogDirectory(tmp_path).partition("t", 0)
    assert (files.ends().earliest, len(files.read(0, 1)) > 0) == (0, True)
    files.close()


def test_deleted_records_stay_deleted_without_their_checkpoint(tmp_path: Path) -> None:
    """Records that were deleted stay away when the checkpoint that says so is damaged."""
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR, 0)
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"garbage")
    note(directory, deleted_before=2, log_start_reason="truncated")
    assert LogDirectory(tmp_path).partition("t", 0).ends().earliest == 2


def test_a_log_whose_first_segment_is_missing_begins_with_a_gap(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    write_segment(directory, FOUR[2:], 2)
    missing = {"start_offset": 0, "end_offset": 2, "segment": 2, "position": 0, "end_position": 0, "reason": "missing"}
    note(directory, log_start=0, damaged=[missing])
    partition = LogDirectory(tmp_path).partition("t", 0)
    assert partition.ends()[:2] == (0, 4)
    assert offsets_read(tmp_path) == [2, 3]
