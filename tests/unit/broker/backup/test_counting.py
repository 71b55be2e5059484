"""What a segment holds, and its checksum, by one pass over its bytes."""

import pytest

from seglog_broker.backup.counting import CutLog, count_segment
from seglog_broker.storage.io.copying import SourceTooShortError
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.checksum import crc32c
from tests.logs import batch
from tests.support import each_case

PATH = "/t-0/00000000000000000000.log"


def content(count: int) -> bytes:
    """So many batches of one record; the base offset is in the first eight bytes, outside of the batch's checksum."""
    return b"".join(number.to_bytes(8) + batch(b"." * 300)[8:] for number in range(count))


@each_case("damaged", [None, 0, 5_000, 30_000])
@each_case("behind", [b"", b"of a later append"])
def test_the_checksum_is_that_of_all_bytes_of_the_cut_log_damaged_ones_too(damaged: int | None, behind: bytes) -> None:
    fs, log = ForgetfulFileSystem(), bytearray(content(200))
    if damaged is not None:
        log[damaged : damaged + 5_000] = bytes(5_000)
    fs.load({PATH: bytes(log) + behind})
    cut = CutLog(fs, PATH, 0, len(log))
    facts = count_segment(cut, None, compacted_before=0, known=[])
    assert cut.checksum() == crc32c(log)
    assert (facts.records == 200) == (damaged is None)


def test_bytes_are_read_once_where_all_are_batches() -> None:
    fs, log = ForgetfulFileSystem(), content(200)
    fs.load({PATH: log})
    cut = CutLog(fs, PATH, 0, len(log))
    count_segment(cut, None, compacted_before=0, known=[])
    file = fs.open(PATH, writable=True)
    file.pwritev([bytes(len(log))], 0)
    file.close()
    assert cut.checksum() == crc32c(log)


def test_a_log_that_is_shorter_than_it_was_is_an_error() -> None:
    fs, log = ForgetfulFileSystem(), content(10)
    fs.load({PATH: log})
    with pytest.raises(SourceTooShortError, match="were to be copied"):
        CutLog(fs, PATH, 0, len(log) + 1).checksum()
