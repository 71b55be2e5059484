"""No cold page is read on the loop: a thread reads what a seek needs, and the seek is repeated."""

from collections.abc import Callable

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.testing import forgetful
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


@pytest.fixture
def cold_reads_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of files whose cold bytes were read or mapped outside the offload."""
    seen: list[str] = []
    pread, map_ = forgetful._ForgetfulFile.pread, ForgetfulFileSystem.map
    offloads: list[Watching] = []

    def watched_pread(self: forgetful._ForgetfulFile, size: int, position: int) -> bytes:
        if not self.is_cached(position, size) and not any(offload.in_thread for offload in offloads):
            seen.append(self.path)
        return pread(self, size, position)

    def watched_map(self: ForgetfulFileSystem, path: str, size: int) -> object:
        if self._inode(path).evicted:
            seen.append(path)
        return map_(self, path, size)

    monkeypatch.setattr(forgetful._ForgetfulFile, "pread", watched_pread)
    monkeypatch.setattr(ForgetfulFileSystem, "map", watched_map)
    init = Watching.__init__

    def noted(self: Watching) -> None:
        init(self)
        offloads.append(self)

    monkeypatch.setattr(Watching, "__init__", noted)
    return seen


@pytest.mark.parametrize(
    "request_",
    [
        messages.FetchRequest([messages.FetchPartition("t", 0, offset=300)]),
        messages.FetchRequest([messages.FetchPartition("t", 0, offset=300, max_bytes=1000)]),
        messages.FetchRequest([messages.FetchPartition("t", 0, timestamp=1_300)]),
    ],
    ids=["by offset", "up to a boundary inside a segment", "by time"],
)
async def test_a_fetch_waits_for_cold_bytes_in_a_thread(
    cold_reads_on_the_loop: list[str], request_: messages.FetchRequest
) -> None:
    offload = Watching()
    broker = await _filled(ForgetfulFileSystem(), offload)
    assert broker.fetch_now(request_) is None, "it would have to wait for the disk"
    with await broker.fetch(request_) as answer:
        assert answer.reply.partitions[0].offset == 300
        assert answer.slices[0].size > 0
    assert offload.cold_reads > 0
    assert broker.metrics.cold_reads == offload.cold_reads
    assert cold_reads_on_the_loop == []
    warm = broker.fetch_now(request_)
    assert warm is not None, "and now it need not"
    warm.close()
    broker.close()


async def test_offsets_at_a_time_and_explanations_wait_in_a_thread_too(cold_reads_on_the_loop: list[str]) -> None:
    offload = Watching()
    broker = await _filled(ForgetfulFileSystem(), offload)
    reply, _ = await broker.answer(messages.OffsetsRequest([messages.OffsetsPartition("t", 0, timestamp=1_555)]))
    assert isinstance(reply, messages.OffsetsReply)
    assert reply.partitions[0].offset == 555
    await broker.answer(messages.ExplainRequest("t", 0, offset=123))
    await broker.answer(messages.ExplainSegmentsRequest("t", 0))
    assert offload.cold_reads > 0
    assert cold_reads_on_the_loop == []
    broker.close()


async def test_requests_are_served_where_the_system_cannot_say_what_is_in_memory() -> None:
    fs = ForgetfulFileSystem(cached=False)  # as on macOS
    offload = Watching()
    broker = await _filled(fs, offload)
    with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0, offset=300)])) as answer:
        assert answer.slices[0].size > 0
    assert offload.cold_reads == 1
    broker.close()
