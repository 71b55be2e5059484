"""No look-up keeps the loop, however far it has to walk: where indexes lie, are full or gone, or bytes are damaged.

What is counted is work: bytes read and headers parsed between two turns of the loop. Time is not looked at. What comes
of it is what comes of a walk without a stop.
"""

from collections.abc import Callable
from typing import Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.segment import damage as damage_module
from seglog_broker.storage.segment import flaws, segment_log
from seglog_broker.storage.segment import segment as segment_module
from seglog_broker.testing import forgetful
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import batch_scan, header_scan, messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checksum import crc32c
from seglog_protocol.record_batch import BatchHeader, parse_header
from tests.appends import append_request
from tests.logs import ManualClock

BATCHES: Final = 3_000
HEADERS: Final = 100
SEARCHED: Final = 64 * 1024
STEM: Final = "/data/t-0/00000000000000000000"
NO_ENTRY: Final = {"index.interval.bytes": 2**30}
TIME: Final = 1_000_000


async def filled(topic: dict[str, int], *, closed: bool = True, timestamp: Callable[[int], int]) -> Broker:
    """A broker that was just started, with a segment of very many small batches."""
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    broker = Broker.open(config, ForgetfulFileSystem(), ManualClock(), InlineOffload())
    retained = {"retention.ms": -1, **topic}
    await broker.create_topic(messages.CreateTopicRequest("t", 1, retained))  # type: ignore[arg-type]
    log = broker.partitions["t", 0].log
    for first in range(0, BATCHES, 50):
        batches = [encode_batch([(timestamp(number), b"", b"", ())]) for number in range(first, first + 50)]
        request = messages.AppendRequest([messages.AppendPartition("t", 0, len(batch)) for batch in batches], "os")
        await append_request(broker, request, memoryview(bytearray(b"".join(batches)))).wait()
    if closed:
        log.roller.roll(log.log_end_offset, RollReason.SIZE)
    assert not broker.close()
    return broker


def started(broker: Broker) -> Broker:
    return Broker.open(broker.config, broker.fs, ManualClock(), InlineOffload())


class Work:
    """The most headers parsed and bytes read between two turns of the loop."""

    def __init__(self) -> None:
        self.headers = self.bytes = self.all_headers = self.turns = 0
        self._now = [0, 0]

    def note(self, headers: int, size: int) -> None:
        self._now[0] += headers
        self._now[1] += size
        self.all_headers += headers
        self.headers, self.bytes = max(self.headers, self._now[0]), max(self.bytes, self._now[1])

    async def watch(self) -> None:
        while True:
            self._now = [0, 0]
            self.turns += 1
            await trio.lowlevel.checkpoint()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found = Work()
    for module in (damage_module, segment_module, segment_log, flaws):
        monkeypatch.setattr(module, "HEADERS_A_TURN", HEADERS)
    monkeypatch.setattr(batch_scan, "PLACES_A_TURN", HEADERS)
    for searching in (batch_scan, damage_module):
        monkeypatch.setattr(searching, "SEARCHED_A_TURN", SEARCHED)
    parse, pread = parse_header, forgetful._ForgetfulFile.pread

    def parsed(data: bytes, position: int = 0) -> BatchHeader:
        found.note(1, 0)
        return parse(data, position)

    def read(self: forgetful._ForgetfulFile, size: int, position: int) -> bytes:
        data = pread(self, size, position)
        found.note(0, len(data))
        return data

    for walking in (batch_scan, damage_module, header_scan):
        monkeypatch.setattr(walking, "parse_header", parsed)
    monkeypatch.setattr(forgetful._ForgetfulFile, "pread", read)
    return found


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
    write(fs, ".log", 100_000, b"\x02" * 60_000)


def nothing(fs: ForgetfulFileSystem) -> None:
    pass


@pytest.mark.parametrize(
    ("topic", "spoil", "offset", "found"),
    [
        ({}, lose_offset_index, 1_530, 1_530),
        (NO_ENTRY, nothing, 2_700, 2_700),
        ({}, damage, 1_500, None),
        ({}, nothing, 2_700, 2_700),
    ],
    ids=["an index that lies", "no index entry", "damage", "all is well"],
)
async def test_a_look_up_by_offset(
    topic: dict[str, int], spoil: Callable[[ForgetfulFileSystem], None], offset: int, found: int | None, work: Work
) -> None:
    broker = await filled(topic, timestamp=lambda _: TIME)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    spoil(broker.fs)
    broker = started(broker)
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
        unpaced = started_over(broker)
        with pytest.raises(type(result.error)) as error:
            unpaced.partitions["t", 0].log.read(offset, 100)
        assert error.value.facts["next_offset"] == told
        assert told > offset
        broker = unpaced
    else:
        assert (result.error, result.offset, result.gaps) == (None, found, None)
    broker.close()


@pytest.mark.parametrize("by", ["fetch", "offsets", "explain"])
@pytest.mark.parametrize(
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
    work: Work,
) -> None:
    broker = await filled(topic, timestamp=timestamp)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    spoil(broker.fs)
    broker = started(broker)
    wanted, found = TIME + 1_600, None
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
    assert found == 1_600
    bounded(work)
    broker.close()


async def test_batches_whose_headers_promise_what_their_records_have_not(work: Work) -> None:
    """The producer writes the header, and its largest timestamp may be one that no record of the batch has."""
    broker = await filled({}, timestamp=lambda _: TIME)
    broker = started(broker)
    log = broker.partitions["t", 0].log
    lying = bytearray(encode_batch([(TIME, b"", b"v" * 10, ())]))
    lie(lying, TIME + 10**9)
    for _ in range(200):
        data = bytearray(lying)
        await append_request(
            broker, messages.AppendRequest([messages.AppendPartition("t", 0, len(data))], "os"), memoryview(data)
        ).wait()
    last = bytearray(encode_batch([(TIME + 10**9, b"", b"", ())]))
    await append_request(
        broker, messages.AppendRequest([messages.AppendPartition("t", 0, len(last))], "os"), memoryview(last)
    ).wait()
    opened, most = 0, 0
    first_at = segment_module.first_at

    def counted(*arguments: object) -> object:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        return first_at(*arguments)  # type: ignore[arg-type]

    async def turns() -> None:
        nonlocal opened
        while True:
            opened = 0
            await trio.lowlevel.checkpoint()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "first_at", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns)
            reply = await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t", 0, TIME + 5)]))
            nursery.cancel_scope.cancel()
    assert reply.partitions[0].offset == log.log_end_offset - 1
    assert 0 < most <= 8
    broker.close()


def lie(batch: bytearray, timestamp: int) -> None:
    batch[35:43] = timestamp.to_bytes(8, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")


def started_over(broker: Broker) -> Broker:
    broker.close()
    return started(broker)


def bounded(work: Work) -> None:
    assert work.headers <= 5 * HEADERS
    assert work.bytes <= 4 * batch_scan.SCAN_WINDOW
