"""Damage while a broker serves, before any scrub: which records and errors readers near it get.

Every record of an undamaged batch is delivered, once and with its own offset. Every other offset is reported, by an
error with the offset to continue at or by a gap. Every reader reaches the end.
"""

import os
import random
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from seglog.core.fetcher import Fetcher, FetchOptions, PartitionPosition
from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.messages import CreateTopicRequest
from tests.appends import append_batch
from tests.logs import ManualClock, contents, flip_bit
from tests.support import soak_scaled

COUNTS: Final = (1, 3, 1, 8, 2, 1, 5, 1, 1, 4, 2, 3)
"""Records of each batch: four to a segment, the last four in the one that is appended to."""
BATCH_READS: Final = 1
"""A limit that lets one batch into an answer."""

Found = list[tuple[int, int, bytes | None]]
"""Offset, timestamp and value."""


def open_broker(fs: ForgetfulFileSystem, clock: ManualClock | None = None) -> Broker:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return Broker.open(config, fs, clock or ManualClock(), InlineOffload())


class Written:
    """A cleanly stopped log directory, the positions of its batches, and its records."""

    def __init__(self, files: dict[str, bytes], places: list[tuple[str, int, int, int]], records: Found) -> None:
        self.files = files
        self.places = places  # of each batch: path, position, first offset, offset behind it
        self.records = records


async def _written(*, index_interval: int = 100) -> Written:
    fs, clock = ForgetfulFileSystem(), ManualClock()
    broker = open_broker(fs, clock)
    topic = {"segment.ms": 1000, "index.interval.bytes": index_interval}
    await broker.create_topic(CreateTopicRequest("t", 1, dict(topic)))
    places, records, offset = [], Found(), 0
    log = broker.partitions["t", 0].log
    for number, count in enumerate(COUNTS):
        if number and number % 4 == 0:
            clock.now += 2000
        values = [b"value %d" % (offset + part) for part in range(count)]
        data = encode_batch([(clock.now, None, value, ()) for value in values])
        await append_batch(broker, data, ack="disk").wait()
        places.append((log.active.log_path, log.active.size - len(data), offset, offset + count))
        records += [(offset + part, clock.now, value) for part, value in enumerate(values)]
        offset += count
    assert len(log.segments) == 3
    broker.close()
    return Written(contents(fs), places, records)


class Reader:
    """A consumer that continues after damage, as with ``--skip-damaged``."""

    def __init__(self, start: int, end: int, partition_bytes: int) -> None:
        options = FetchOptions(partition_bytes=partition_bytes)
        self.fetcher = Fetcher("t", [PartitionPosition(0, start, end=end)], options)
        self.found: Found = []
        self.damaged: set[int] = set()
        self.asked = 0

    async def read(self, broker: Broker) -> None:
        state = self.fetcher.states[0]
        while not self.fetcher.is_finished:
            self.asked += 1
            assert self.asked < 500, f"it goes round in circles at {state.position}"
            request, generations = self.fetcher.request(0.0), self.fetcher.generations()
            assert request is not None
            with await broker.fetch(request) as answer:
                payload = b"".join(piece.file.pread(piece.size, piece.position) for piece in answer.slices)
                self.fetcher.take(answer.reply, memoryview(payload), request, generations, 0.0)
            self._hand_out()

    def _hand_out(self) -> None:
        state = self.fetcher.states[0]
        while True:
            try:
                batch = self.fetcher.next_batch()
            except CorruptRecordError as error:
                assert error.next_offset > state.position, f"{error} leads nowhere"  # noqa: PT017 - it is expected
                self.damaged |= set(range(state.position, error.next_offset))
                state.go_to(error.next_offset)
                continue
            if batch is None:
                return
            for record in batch.records():
                self.found.append((record.offset, record.timestamp, record.value))
            self.fetcher.finish(batch)

    @property
    def told(self) -> set[int]:
        missing = (range(gap.start, gap.end) for gap in self.fetcher.new_gaps if gap.reason in {"missing", "damaged"})
        return self.damaged.union(*missing)


async def _sweep(broker: Broker, written: Written, broken: set[int], what: str, starts: Iterator[int]) -> None:
    """Read from each of these offsets, in large pieces and batch by batch."""
    end = len(written.records)
    for start in starts:
        for size in (BATCH_READS, 1 << 20):
            reader = Reader(start, end, size)
            await reader.read(broker)
            due = [record for record in written.records[start:] if record[0] not in broken]
            assert reader.found == due, f"{what}, from {start} in pieces of {size}"
            assert reader.told == {offset for offset in broken if offset >= start}, f"{what}, from {start}"


async def test_a_changed_offset_is_noticed_wherever_a_reader_begins() -> None:
    """Also at the changed offset, where the batch seems to be the right one. Each reader is the first one there."""
    written = await _written()
    end = len(written.records)
    for path, position, first, behind in written.places:
        for bit in range(end.bit_length()):
            changed = first ^ 1 << bit
            starts = {changed - 1, changed, changed + 1, first, behind - 1, behind}
            for start in sorted(starts & set(range(end))):
                for size in (BATCH_READS, 1 << 20) if start == changed else (BATCH_READS,):
                    fs = ForgetfulFileSystem()
                    fs.load(written.files)
                    broker = open_broker(fs)
                    flip_bit(fs, path, position + 7, bit)
                    reader = Reader(start, end, size)
                    await reader.read(broker)
                    what = f"{first} became {changed}, read from {start} in pieces of {size}"
                    wrong = [record for record in reader.found if record not in written.records]
                    assert not wrong, what
                    lost = set(range(max(start, first), behind))
                    due = [record for record in written.records[start:] if record[0] not in lost]
                    assert reader.found == due, what
                    assert reader.told == lost, what
                    broker.close()


def _damage(fs: ForgetfulFileSystem, written: Written, chance: random.Random) -> set[int]:
    """Overwrite a few random ranges of bytes; returns the offsets of the batches in them."""
    broken = set[int]()
    for _ in range(chance.randint(1, 3)):
        path, position, *_ = chance.choice(written.places)
        size = len(written.files[path])
        start = chance.randrange(size) if chance.random() < 0.5 else min(size - 1, position + chance.randrange(30))
        length = min(size - start, chance.choice([1, 1, 2, 8, 60, 200]))
        with fs.open(path, writable=True) as file:
            before = file.pread(length, start)
            after = chance.randbytes(length) if chance.random() < 0.7 else bytes(length)
            file.pwritev([after], start)
        changed = {start + i for i in range(length) if before[i] != after[i]}
        for of, at, first, behind in written.places:
            length_ = struct.unpack(">i", written.files[of][at + 8 : at + 12])[0] + 12
            inside = set(range(at, at + length_)) - set(range(at + 12, at + 16))
            if of == path and changed & inside:
                broken |= set(range(first, behind))
    return broken


@pytest.mark.soak
async def test_readers_get_all_undamaged_records() -> None:
    """Whichever bytes are damaged, and errors for the other records."""
    written = await _written()
    seed = int(os.environ.get("SEGLOG_DAMAGE_SEED", "0"))
    for round_ in range(int(os.environ.get("SEGLOG_DAMAGE_ROUNDS") or soak_scaled(100))):
        chance = random.Random(seed * 1_000_003 + round_)
        fs = ForgetfulFileSystem()
        fs.load(written.files)
        broker = open_broker(fs)
        broken = _damage(fs, written, chance)
        starts = iter([0, chance.randrange(len(written.records))])
        await _sweep(broker, written, broken, f"round {round_} of seed {seed}, lost {sorted(broken)}", starts)
        broker.close()
