"""No cold page is read on the loop: a thread reads what a seek needs, and the seek is repeated."""

from collections.abc import Callable

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from tests.appends import append_request
from tests.logs import ManualClock, batch


class Watching(InlineOffload):
    """Knows whether an offloaded cold read is running; only then may cold bytes be read."""

    def __init__(self) -> None:
        super().__init__()
        self.in_thread = False
        self.cold_reads = 0

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        self.cold_reads += 1
        self.in_thread = True
        try:
            return fn(*args)
        finally:
            self.in_thread = False


async def _filled(fs: ForgetfulFileSystem, offload: Watching) -> Broker:
    """A broker that was just started on some twenty closed segments, none of them in the page cache."""
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    broker = Broker.open(config, fs, ManualClock(), offload)
    topic = {"segment.bytes": 4096, "index.interval.bytes": 300}
    await broker.create_topic(messages.CreateTopicRequest("t", 1, topic))  # type: ignore[arg-type]
    for number in range(600):
        encoded = bytearray(batch(b"value %d" % number, timestamp=1000 + number))
        append_request(
            broker, messages.AppendRequest([messages.AppendPartition("t", 0, len(encoded))], "os"), memoryview(encoded)
        )
    assert len(broker.partitions["t", 0].log.segments) > 10
    broker.close()
    broker = Broker.open(config, fs, ManualClock(), offload)
    for path in fs.snapshot():
        if "/t-0/" in path and not path.endswith("/"):
            fs.evict(path)
    return broker


class Watched(ForgetfulFileSystem):
    """Notes files whose cold bytes are read or mapped outside of ``offload``."""

    def __init__(self, offload: Watching) -> None:
        super().__init__()
        self._offload = offload
        self.read_on_the_loop: list[str] = []

    def look(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        if name in {"pread", "map"} and self._inode(path).evicted and not self._offload.in_thread:
            self.read_on_the_loop.append(path)
        super().look(name, path, position, size)


@pytest.mark.parametrize(
    "request_",
    [
        messages.FetchRequest([messages.FetchPartition("t", 0, offset=300)]),
        messages.FetchRequest([messages.FetchPartition("t", 0, offset=300, max_bytes=1000)]),
        messages.FetchRequest([messages.FetchPartition("t", 0, timestamp=1_300)]),
    ],
    ids=["by offset", "up to a boundary inside a segment", "by time"],
)
async def test_a_fetch_waits_for_cold_bytes_in_a_thread(request_: messages.FetchRequest) -> None:
    offload = Watching()
    fs = Watched(offload)
    broker = await _filled(fs, offload)
    assert broker.fetch_now(request_) is None, "it would have to wait for the disk"
    with await broker.fetch(request_) as answer:
        assert answer.reply.partitions[0].offset == 300
        assert answer.slices[0].size > 0
    assert offload.cold_reads > 0
    assert broker.metrics.cold_reads == offload.cold_reads
    assert fs.read_on_the_loop == []
    warm = broker.fetch_now(request_)
    assert warm is not None, "and now it need not"
    warm.close()
    broker.close()


async def test_offsets_at_a_time_and_explanations_wait_in_a_thread_too() -> None:
    offload = Watching()
    fs = Watched(offload)
    broker = await _filled(fs, offload)
    reply, _ = await broker.answer(messages.OffsetsRequest([messages.OffsetsPartition("t", 0, timestamp=1_555)]))
    assert isinstance(reply, messages.OffsetsReply)
    assert reply.partitions[0].offset == 555
    await broker.answer(messages.ExplainRequest("t", 0, offset=123))
    await broker.answer(messages.ExplainSegmentsRequest("t", 0))
    assert offload.cold_reads > 0
    assert fs.read_on_the_loop == []
    broker.close()


async def test_requests_are_served_where_the_system_cannot_say_what_is_in_memory() -> None:
    fs = ForgetfulFileSystem(cached=False)  # as on macOS
    offload = Watching()
    broker = await _filled(fs, offload)
    with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0, offset=300)])) as answer:
        assert answer.slices[0].size > 0
    assert offload.cold_reads == 1
    broker.close()


class Resting(InlineOffload):
    """Counts what rests."""

    def __init__(self) -> None:
        super().__init__()
        self.rests = 0

    async def rest(self) -> None:
        self.rests += 1


async def test_work_that_nobody_waits_for_lets_syncs_go_first() -> None:
    fs, offload = ForgetfulFileSystem(), Resting()
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    broker = Broker.open(config, fs, ManualClock(), offload)
    await broker.scheduler.turn()
    assert offload.rests == 0
    await broker.scheduler.quiet_turn()
    assert offload.rests == 1
    broker.close()
