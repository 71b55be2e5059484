"""Checksum files of closed segments: written ones are read back, and any other content is malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.segment import checksum
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.checksum import crc32c
from tests.support import each_case

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
