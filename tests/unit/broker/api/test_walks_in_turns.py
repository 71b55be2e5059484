"""No look-up keeps the loop, however far it has to walk: where indexes lie, are full or gone, or bytes are damaged.

What is counted is work: bytes read between two turns of the loop, and turns. Time is not looked at. What comes of it is
what comes of a walk without a stop.
"""

from collections.abc import Callable, Mapping
from typing import Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.storage.io.pauses import HEADERS_A_TURN
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.segment import RECORDS_A_TURN
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_scan import PLACES_A_TURN, SCAN_WINDOW
from seglog_protocol.checksum import crc32c
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.api.scene import append
from tests.unit.broker.brokers import open_broker

BATCHES: Final = 10 * HEADERS_A_TURN
VALUE: Final = bytes(950)
DAMAGED_BYTES: Final = 60 * PLACES_A_TURN
STEM: Final = "/data/t-0/00000000000000000000"
NO_ENTRY: Final = {"index.interval.bytes": 2**30}
TIME: Final = 1_000_000


async def filled(topic: dict[str, int], *, closed: bool = True, timestamp: Callable[[int], int]) -> Broker:
    """A broker that was just started, with a segment of very many small batches."""
    broker = open_broker()
    retained = {"retention.ms": -1, "index.interval.bytes": 300_000, **topic}
    await broker.create_topic(messages.CreateTopicRequest("t", 1, retained))  # type: ignore[arg-type]
    log = broker.partitions["t", 0].log
    for first in range(0, BATCHES, 50):
        batches = [encode_batch([(timestamp(number), b"", VALUE, ())]) for number in range(first, first + 50)]
        await append(broker, *batches)
    if closed:
        log.roller.roll(log.log_end_offset, RollReason.SIZE)
    assert not broker.close()
    return broker


def started(broker: Broker) -> tuple[Broker, "Work"]:
    """A broker that was just started on the files of another, and its disk."""
    assert isinstance(broker.fs, ForgetfulFileSystem)
    work = Work(broker.fs.snapshot())
    broker = Broker.open(broker.config, work, ManualClock(), InlineOffload())
    work.bytes = 0
    return broker, work


class Work(ForgetfulFileSystem):
    """A disk that notes the most bytes read between two turns of the loop, and the turns."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        super().__init__()
        self.load(content)
        self.bytes = self.turns = self._now = 0

    def look(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        super().look(name, path, position, size)
        self._now += size
        self.bytes = max(self.bytes, self._now)

    async def watch(self) -> None:
        while True:
            self._now = 0
            self.turns += 1
            await trio.lowlevel.checkpoint()


def write(fs: ForgetfulFileSystem, suffix: str, position: int, data: bytes) -> None:
    file = fs.open(f"{STEM}{suffix}", writable=True)
    file.pwritev([data], position if position >= 0 else file.size() + position)
    file.close()


def lose_offset_index(fs: ForgetfulFileSystem) -> None:
    write(fs, ".index", fs.open(f"{STEM}.index").size() // 16 * 8 + 4, (777).to_bytes(4, "big"))


def lose_time_index(fs: ForgetfulFileSystem) -> None:
    write(fs, ".timeindex", -12, b"\x7f" * 12)


def damage(fs: ForgetfulFileSystem) -> None:
    """Overwrite a long range with bytes that each could begin a batch."""
    write(fs, ".log", 1_000_000, b"\x02" * DAMAGED_BYTES)


def nothing(fs: ForgetfulFileSystem) -> None:
    pass


@each_case(
    ("topic", "spoil", "offset", "found"),
    [
        ({}, lose_offset_index, 5_100, 5_100),
        (NO_ENTRY, nothing, 9_000, 9_000),
        ({}, damage, 1_000, None),
        ({}, nothing, 9_000, 9_000),
    ],
    ids=["an index that lies", "no index entry", "damage", "all is well"],
)
async def test_a_look_up_by_offset(
    topic: dict[str, int], spoil: Callable[[ForgetfulFileSystem], None], offset: int, found: int | None
) -> None:
    broker = await filled(topic, timestamp=lambda _: TIME)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    spoil(broker.fs)
    broker, work = started(broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.watch)
        with await broker.fetch(
            messages.FetchRequest([messages.FetchPartition("t", 0, offset, max_bytes=100)], max_wait_ms=0)
        ) as answer:
            result = answer.reply.partitions[0]
        nursery.cancel_scope.cancel()
    bounded(work)
    if found is None:
        assert result.error is not None
        told = result.error.facts["next_offset"]
        assert work.turns >= DAMAGED_BYTES // (2 * PLACES_A_TURN), "each damaged byte could begin a batch"
        broker.close()
        unpaced, _ = started(broker)
        with pytest.raises(type(result.error)) as error:
            unpaced.partitions["t", 0].log.read(offset, 100)
        assert error.value.facts["next_offset"] == told
        assert told > offset
        broker = unpaced
    else:
        assert (result.error, result.offset, result.gaps) == (None, found, None)
    broker.close()


@each_case("by", ["fetch", "offsets", "explain"])
@each_case(
    ("topic", "spoil", "timestamp"),
    [
        ({}, lose_time_index, lambda number: TIME + number),
        ({}, lose_offset_index, lambda number: TIME + number),
        (NO_ENTRY, nothing, lambda number: TIME + number),
    ],
    ids=["a time index that lies", "an offset index that lies", "no index entry"],
)
async def test_a_look_up_by_time(
    topic: dict[str, int],
    spoil: Callable[[ForgetfulFileSystem], None],
    timestamp: Callable[[int], int],
    by: str,
) -> None:
    broker = await filled(topic, timestamp=timestamp)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    spoil(broker.fs)
    broker, work = started(broker)
    wanted, found = TIME + 5_300, None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.watch)
        if by == "fetch":
            request = messages.FetchRequest(
                [messages.FetchPartition("t", 0, timestamp=wanted, max_bytes=100)], max_wait_ms=0
            )
            with await broker.fetch(request) as answer:
                found = answer.reply.partitions[0].offset
        elif by == "offsets":
            found = (
                (await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t", 0, wanted)])))
                .partitions[0]
                .offset
            )
        else:
            reply, _ = await broker.answer(messages.ExplainRequest("t", 0, timestamp=wanted))
            found = reply.record_offset  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()
    assert found == 5_300
    bounded(work)
    broker.close()


async def test_batches_whose_headers_promise_what_their_records_have_not() -> None:
    """The producer writes the header, and its largest timestamp may be one that no record of the batch has."""
    broker = await filled({}, timestamp=lambda _: TIME)
    broker, work = started(broker)
    log = broker.partitions["t", 0].log
    lying = bytearray(encode_batch([(TIME, b"", b"v" * 10, ())]))
    lie(lying, TIME + 10**9)
    for _ in range(200):
        await append(broker, bytes(lying))
    await append(broker, encode_batch([(TIME + 10**9, b"", b"", ())]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.watch)
        reply = await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t", 0, TIME + 5)]))
        nursery.cancel_scope.cancel()
    assert reply.partitions[0].offset == log.log_end_offset - 1
    assert work.turns >= 200 // (2 * RECORDS_A_TURN)
    broker.close()


def lie(batch: bytearray, timestamp: int) -> None:
    batch[35:43] = timestamp.to_bytes(8, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")


def bounded(work: Work) -> None:
    assert 0 < work.bytes <= 4 * SCAN_WINDOW < BATCHES * len(VALUE)
