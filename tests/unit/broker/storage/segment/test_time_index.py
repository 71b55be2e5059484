"""The time index against a sorted list, its reserved slot, and the golden vector through real appends."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.storage.segment.sparse_index import IndexOrderError
from seglog_broker.storage.segment.time_index import TimeIndex
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import DIRECTORY, LogOnDisk, contents, flip_bit
from tests.unit.broker.storage.segment.indexes import Indexes

_PATH = "/p-0/00000000000000000000.timeindex"


def indexes_of(base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512) -> Indexes[TimeIndex]:
    return Indexes(TimeIndex, _PATH, base, bytes_max=bytes_max, handles_max=handles_max)


def test_one_slot_is_kept_for_the_closing_entry() -> None:
    index = indexes_of(bytes_max=30 * 12 + 11).new()
    for number in range(29):
        assert not index.is_full
        index.offer(100 + number, number)
    assert index.is_full
    with pytest.raises(IndexOrderError, match="is full with 29 entries"):
        index.offer(1000, 50)
    index.offer(1000, 50, closing=True)
    assert index.count == 30
    assert index.last == (1000, 50)


@pytest.mark.parametrize("closing", [False, True])
def test_offset_and_timestamp_never_fall_even_at_closing(closing: bool) -> None:
    index = indexes_of().new()
    index.offer(100, 10)
    with pytest.raises(IndexOrderError, match="offset 9 is below"):
        index.offer(101, 9, closing=closing)
    with pytest.raises(IndexOrderError, match="timestamp 99 is below"):
        index.offer(99, 11, closing=closing)
    assert index.last == (100, 10)


@pytest.mark.parametrize("handles_max", [1, 512])
@given(data=st.data())
def test_it_answers_as_a_sorted_list_does(handles_max: int, data: st.DataObject) -> None:
    indexes = indexes_of(500, handles_max=handles_max)
    indexes.write_bytes = data.draw(st.sampled_from([12, 36]))
    indexes.tail_bytes_max = data.draw(st.sampled_from([36, 84]))
    index = indexes.new()
    model: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["offer"] * 8 + ["drop", "reopen"]))
        if action == "offer":
            timestamp, offset = model[-1] if model else (-1, 500)
            timestamp, offset = timestamp + data.draw(st.integers(0, 3)), offset + data.draw(st.integers(0, 2))
            index.offer(timestamp, offset)
            if timestamp > (model[-1][0] if model else -1):
                model.append((timestamp, offset))
        elif action == "drop" and model:
            index.drop_last()
            model.pop()
        elif action == "reopen":
            index.trim()
            index = indexes.reopened()
        target = data.draw(st.integers(-1, 150))
        at = bisect_right([entry[0] for entry in model], target) - 1
        assert index.lookup(target) == (model[at] if at >= 0 else (-1, 500))
        assert index.last == (model[-1] if model else (-1, 500))
        assert index.count == len(model)


def test_real_appends_give_kafkas_own_index_bytes() -> None:
    """A8: base 1000, interval 100, six batches of two records and 117 bytes; closed after the last."""
    fs = ForgetfulFileSystem()
    fs.load({"/p-0/": b""})
    handles = HandlePool(fs)
    segment = Segment(fs, handles, "/p-0", 1000, index_bytes_max=10_485_760, index_interval=100)
    segment.create()
    for number, timestamp in enumerate((1000, 1001, 1002, 5000, 1004, 1005)):
        encoded = bytearray(encode_batch([(timestamp, None, b"." * 21, ()), (timestamp, None, b"." * 21, ())]))
        assert len(encoded) == 117
        rewrite_offset_and_epoch(encoded, 0, 1000 + 2 * number, 0)
        assert segment.append((encoded,), ((len(encoded), 1001 + 2 * number, timestamp),)) == 117 * number
    segment.close()
    disk = fs.snapshot()
    assert disk["/p-0/00000000000000001000.index"].hex() == (
        "000000030000007500000005000000ea000000070000015f00000009000001d40000000b00000249"
    )
    assert disk["/p-0/00000000000000001000.timeindex"].hex() == (
        "00000000000003e90000000300000000000003ea00000005000000000000138800000007"
    )
    assert segment.max_timestamp == (5000, 1007)
    handles.close()
    assert fs.open_files == []


# --- An index that lies -----------------------------------------------------------------------------------------------


def _timed(stamps: list[int], *, closed: bool) -> LogOnDisk:
    """A batch for each timestamp in the first segment; with ``closed`` another segment follows."""
    disk = LogOnDisk(TopicConfig(index_interval_bytes=150))
    for stamp in stamps:
        disk.append(b"value", timestamp=stamp)
    if closed:
        disk.log.roller.roll(disk.log.log_end_offset, RollReason.SIZE)
        disk.append(b"behind", timestamp=max(stamps) + 10)
    disk.log.close()
    return disk


_STAMPS = [
    [1000 + 10 * number for number in range(24)],
    [1000 + number * 37 % 101 for number in range(24)],
    [1000 + number // 6 for number in range(24)],
    [1000] * 12 + [5000] + [1000] * 11,
]


@pytest.mark.soak
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("stamps", _STAMPS)
def test_no_bit_of_a_time_index_sends_a_look_up_past_a_record(stamps: list[int], closed: bool) -> None:
    disk = _timed(stamps, closed=closed)
    files = contents(disk.fs)
    path = f"{DIRECTORY}/{0:020d}.timeindex"
    everything = [*stamps, *([max(stamps) + 10] if closed else [])]
    wanted = sorted({stamp + change for stamp in everything for change in (-1, 0, 1)})
    assert len(files[path]) >= 12
    for position in range(len(files[path])):
        for bit in range(8):
            fs = ForgetfulFileSystem()
            fs.load(files)
            flip_bit(fs, path, position, bit)
            disk.fs = fs
            log = disk._open(clean=True)
            for moment in wanted:
                found = log.find_timestamp(moment)
                expected = next((number for number, stamp in enumerate(everything) if stamp >= moment), None)
                assert (found.offset if found else None) == expected, f"byte {position}, bit {bit}, {moment}"
            assert log.segments[0].largest_timestamp == max(stamps), f"byte {position}, bit {bit}"
            log.release()


def test_a_lying_closing_entry_is_made_again_byte_for_byte() -> None:
    disk = _timed(_STAMPS[0], closed=True)
    path = f"{DIRECTORY}/{0:020d}.timeindex"
    sound = contents(disk.fs)[path]
    flip_bit(disk.fs, path, len(sound) - 5, 3)
    disk._open(clean=True)
    assert disk.log.segments[0].largest_timestamp == max(_STAMPS[0])
    assert contents(disk.fs)[path] == sound


def test_the_proof_of_an_entry_reads_no_more_than_lies_between_two_offset_entries() -> None:
    disk = LogOnDisk(TopicConfig(index_interval_bytes=4096))
    for number in range(3000):
        disk.append(b"x" * 100, timestamp=1000 + number)
    disk.reopen()
    double = disk.fs
    assert isinstance(double, ForgetfulFileSystem)
    for moment in (1000, 1001, 2500, 3998, 3999):
        double.reads.clear()
        found = disk.log.find_timestamp(moment)
        assert found is not None
        assert found.offset == moment - 1000
        read = sum(look.size for look in double.reads if look.name == "pread" and look.path.endswith(".log"))
        assert read < 8 * 4096 + 64 * 170


def test_an_entry_that_no_file_can_hold_is_an_error_of_its_own() -> None:
    disk = LogOnDisk()
    index = disk.log.active.time_index
    for timestamp, offset in ((5, 2**31), (2**63, 1)):
        with pytest.raises(IndexOrderError):
            index.offer(timestamp, offset)
    assert index.count == 0
