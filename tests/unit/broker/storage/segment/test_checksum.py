"""Checksums of segments: their files, and their life: computed, written, continued after a start, removed in time."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log.partition_state import ActiveChecksum, PartitionState
from seglog_broker.storage.segment import checksum
from seglog_broker.storage.segment.checksum import SegmentChecksum, read_segment_checksum, write_segment_checksum
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import StorageError
from tests.logs import DIRECTORY, LogOnDisk, batch_of_size, cut_file, flip_bit, verify
from tests.support import each_case
from tests.unit.broker.storage.steps import checkpoint, save_state

_FILE = b"0\n1048576 e3069283\n634f9cac\n"


def _disk(content: bytes = b"batches") -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/00000000000000000042.log": content})
    return fs


def test_the_file_is_three_lines_of_text() -> None:
    assert checksum.encode_segment_checksum(checksum.SegmentChecksum(1_048_576, 0xE3069283)) == _FILE
    assert crc32c(b"0\n1048576 e3069283\n") == 0x634F9CAC


@given(st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(size: int, crc: int) -> None:
    assert checksum.decode_segment_checksum(
        checksum.encode_segment_checksum(checksum.SegmentChecksum(size, crc))
    ) == checksum.SegmentChecksum(size, crc)


def test_no_single_bit_of_the_file_can_turn_unnoticed() -> None:
    for position in range(len(_FILE)):
        for bit in range(8):
            turned = bytearray(_FILE)
            turned[position] ^= 1 << bit
            with pytest.raises(checksum.MalformedChecksumError):
                checksum.decode_segment_checksum(bytes(turned))


@given(st.binary(max_size=60))
def test_anything_else_is_malformed(content: bytes) -> None:
    with pytest.raises(checksum.MalformedChecksumError):
        checksum.decode_segment_checksum(content)


@given(st.lists(st.binary(max_size=50)), st.integers(0, 5))
def test_a_running_checksum_can_be_put_down_and_taken_up(pieces: list[bytes], stop: int) -> None:
    running = checksum.RunningChecksum()
    for number, piece in enumerate(pieces):
        if number == stop:
            running = checksum.RunningChecksum(running.value)
        running.update(piece)
    whole = b"".join(pieces)
    assert running.value == checksum.SegmentChecksum(len(whole), crc32c(whole))


def test_a_segment_without_one_is_not_covered() -> None:
    assert checksum.read_segment_checksum(_disk(), "/t-0", 42) is None


@each_case("size", [0, 7, 1024 * 1024, 1024 * 1024 + 1])
def test_a_segment_is_measured_as_a_whole(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    fs = _disk(content)
    found = checksum.measure_segment(fs, "/t-0", 42)
    assert found == checksum.SegmentChecksum(size, crc32c(content))
    checksum.write_segment_checksum(fs, "/t-0", 42, found)
    assert checksum.read_segment_checksum(fs, "/t-0", 42) == found
    assert checksum.checksum_path("/t-0", 42) == "/t-0/00000000000000000042.checksum"
    assert fs.open_files == []


# --- The checksum of a segment through its life: computed, written, continued after a start, removed in time ----------


def small(batches: int = 0) -> LogOnDisk:
    """Ten batches of 100 bytes a segment."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=150))
    for _ in range(batches):
        disk.append_batch(batch_of_size(100))
    return disk


def path(base: int, suffix: str = ".checksum") -> str:
    return f"{DIRECTORY}/{base:020d}{suffix}"


def covered(disk: LogOnDisk) -> list[bool]:
    """Base offset -> whether the segment's checksum, in memory or in the file, exists and is right."""
    found = []
    for segment in disk.log.segments:
        counted = segment.checksum.running
        said = counted.value if counted is not None else read_segment_checksum(disk.fs, DIRECTORY, segment.base_offset)
        found.append(said == segment.log.measure())
    return found


@given(
    st.lists(
        st.one_of(
            st.integers(1, 330),
            st.sampled_from(["stop", "kill", "power cut", "flush", "save"]),
        ),
        max_size=40,
    )
)
def test_every_segment_is_covered_whatever_happened(steps: list[int | str]) -> None:
    disk = small()
    for step in steps:
        match step:
            case int():
                disk.append(b"." * step)
            case "stop":
                disk.reopen()
            case "kill":
                disk.restart_unclean()
            case "power cut":
                disk.crash(POWER_LOSS)
            case "flush":
                disk.log.flusher.flush()
            case "save":
                disk.log.state_file.save()
        assert all(covered(disk)), step
    verify(disk.fs, disk.log)


def test_what_was_counted_vouches_for_the_bytes_as_they_were_written() -> None:
    disk = small(5)
    disk.log.state_file.save()
    disk.log.release()
    flip_bit(disk.fs, path(0, ".log"), 215)  # the leader epoch of the third batch
    disk._open(clean=False)
    for _ in range(6):
        disk.append_batch(batch_of_size(100))
    assert covered(disk) == [False, True], "the file says what was written, not what was found"


def test_a_stop_in_order_costs_no_reading_for_the_checksum() -> None:
    disk = small(5)
    disk.reopen()
    assert disk.log.state.checksum == ActiveChecksum(0, 500, disk.log.segments[0].log.measure().crc)
    assert covered(disk) == [True]


def test_checksums_of_cut_bytes_are_forgotten() -> None:
    """What is known of bytes that were cut off is forgotten before others take their place."""
    disk = small(5)
    disk.log.state_file.save()
    disk.log.release()
    cut_file(disk.fs, path(0, ".log"), 450)
    disk._open(clean=False)
    assert disk.log.log_end_offset == 4
    state = PartitionState.load(disk.fs, DIRECTORY).checksum
    assert state is not None
    assert state.size == 400
    disk.append_batch(batch_of_size(200))
    disk.restart_unclean()
    assert covered(disk) == [True]


def test_a_file_that_no_room_was_left_for_is_written_by_the_next_checkpoint() -> None:
    disk = small(10)
    disk.double.inject(Fault("pwritev", ".checksum", error=errno.ENOSPC, sticky=True))
    disk.append_batch(batch_of_size(100))
    with pytest.raises((OSError, StorageError)):
        disk.log.flusher.prepare_checkpoint()
    disk.double.heal()
    disk.log.flusher.mark_indexes_unsaved()
    checkpoint(disk.log)
    assert covered(disk) == [True, True]


def test_a_checkpoint_brings_the_file_to_the_disk_and_an_append_does_not() -> None:
    disk = small(11)
    assert not disk.double.found_after(POWER_LOSS).exists(path(0))
    checkpoint(disk.log)
    assert read_file(disk.double.found_after(POWER_LOSS), path(0)) == read_file(disk.fs, path(0))


@pytest.mark.parametrize("size", [300, 5000], ids=["of fewer bytes", "of more bytes"])
def test_recovery_replaces_the_file_of_another_size(size: int) -> None:
    disk = small(15)
    write_segment_checksum(disk.fs, DIRECTORY, 0, SegmentChecksum(size, 1))
    disk.restart_unclean()
    assert covered(disk) == [True, True]


def test_when_the_state_has_grown_old_a_checkpoint_saves_it_for_the_checksum_alone() -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=64 * 1024 * 1024))
    disk.append_batch(batch_of_size(100))
    disk.log.state_file.save()
    assert disk.log.state_file.prepare() is None
    for _ in range(5):
        disk.append_batch(batch_of_size(1_000_000))
    save_state(disk.log)
    assert disk.log.state_file.prepare() is None
    saved = PartitionState.load(disk.fs, DIRECTORY).checksum
    assert saved is not None
    assert saved.size == 5_000_100
