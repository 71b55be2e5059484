"""Flips every single bit of a closed segment's files, one at a time, while a broker serves it to a consumer.

Every record that the consumer gets is right and has its own offset. For other offsets it gets an error, or a gap with
the reason "missing". ``seglogd check`` finds each of these bits, see tests/unit/broker/inspect/check/test_bit_flips.py.
"""

from itertools import product
from typing import Final

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.workers.scrub_job import ScrubJob
from seglog_broker.workers.segment_scrub import scrub_segment
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import CreateTopicRequest
from tests import logs
from tests.appends import append_batch
from tests.logs import LogOnDisk, ManualClock, add_bytes, batch_of_size, contents, cut_file, flip_bit, read_around
from tests.unit.simulation.test_damage_met_by_readers import Found, Reader, open_broker

DIRECTORY: Final = "/data/t-0"
CLOSED: Final = 12
"""Where the segment begins that is looked at; those before and behind it are like it."""
_BATCHES: Final = 3  # a segment, of two records each
_CONFIG: Final = {"segment.ms": 1000, "index.interval.bytes": 0}


async def _written() -> tuple[dict[str, bytes], Found]:
    """Files of a cleanly stopped log directory, and its records."""
    fs, clock = ForgetfulFileSystem(), ManualClock()
    broker = open_broker(fs, clock)
    await broker.create_topic(CreateTopicRequest("t", 1, dict(_CONFIG)))
    records: Found = []
    for number in range(4 * _BATCHES):
        values = [b"%d" % (2 * number + part) for part in range(2)]
        data = encode_batch(
            [(clock.now, None, value, ()) for value in values],
            producer_id=7,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        await append_batch(broker, data, ack="disk").wait()
        records += [(2 * number + part, value) for part, value in enumerate(values)]
        if number % _BATCHES == _BATCHES - 1:
            clock.now += 2000
    assert [segment.base_offset for segment in broker.partitions["t", 0].log.segments] == [0, 6, CLOSED, 18]
    broker.close()
    return contents(fs), records


@pytest.mark.soak
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".checksum", ".snapshot"])
async def test_no_flipped_bit_of_a_closed_segment_gives_a_consumer_wrong_records(suffix: str) -> None:
    files, records = await _written()
    path = f"{DIRECTORY}/{CLOSED:020d}{suffix}"
    wrong = set[tuple[int, int]]()
    for position in range(len(files[path])):
        for bit in range(8):
            fs = ForgetfulFileSystem()
            fs.load(files)
            flip_bit(fs, path, position, bit)
            broker = open_broker(fs)
            for start in (0, CLOSED + 3):
                reader = Reader(start, len(records), 1 << 20)
                await reader.read(broker)
                told = {records[offset] for offset in reader.told}
                if not set(records[start:]) - told <= set(reader.found) <= set(records):
                    wrong.add((position, bit))
                if suffix != ".log":
                    assert reader.found == records[start:], f"byte {position}, bit {bit}: something was left out"
            broker.close()
    assert not wrong


def test_an_offset_moved_into_a_gap_is_found_by_the_checksum_file() -> None:
    """Readers cannot notice it, because holes are normal there. They notice all others by the neighbouring batches."""
    disk = _compacted()
    right = {(record.offset, record.timestamp) for record in read_around(disk.log)}
    assert [offset for offset, _ in sorted(right)] == [0, 1, 3, 4, 5, 6, 7, 8]
    files, moved = contents(disk.fs), set[tuple[int, int]]()
    for number, position, bit in product(range(4), range(8), range(8)):
        fs = ForgetfulFileSystem()
        fs.load(files)
        flip_bit(fs, f"{logs.DIRECTORY}/{0:020d}.log", number * 100 + position, bit)
        again = LogOnDisk(disk.config, fs=fs)
        wrong = {(record.offset, record.timestamp) for record in read_around(again.log)} - right
        moved |= {(number, offset) for offset, _ in wrong}
        job = ScrubJob(logs.DIRECTORY, 0, 5, 0, 10_485_760, is_adopted=False, bytes_per_second=1 << 30)
        verdict = scrub_segment(fs, job, Throttle(None, lambda: 0.0, lambda _: None))
        assert verdict.stored is not None
        assert verdict.measured != verdict.stored
    assert moved == {(2, 2)}, "the third batch, of offset 3, where offset 2 was"


def _compacted() -> LogOnDisk:
    """Batches of 100 bytes and one record, five to a segment; compaction has taken offset 2."""
    disk = LogOnDisk(TopicConfig(segment_bytes=500, index_interval_bytes=0))
    for number in range(9):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number))
    disk.log.close()
    files = contents(disk.fs)
    path = f"{logs.DIRECTORY}/{0:020d}.log"
    cut_file(disk.fs, path, 200)
    add_bytes(disk.fs, path, files[path][300:])
    disk.log.state.compacted_before = 5
    disk.log.state.save(disk.fs, logs.DIRECTORY)
    compacted = LogOnDisk(disk.config, fs=disk.fs)
    segment = compacted.log.segments[0]
    segment.indexes.rebuild()
    segment.checksum.begin(segment.log.measure())
    segment.checksum.save()
    compacted.log.close()
    return LogOnDisk(disk.config, fs=disk.fs)
