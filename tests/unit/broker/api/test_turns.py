"""No request keeps the loop: however much it names, others get their turn after a bounded part of it.

What is counted is work: partitions and topics looked at between two turns of the loop. Time is not looked at.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from seglog_broker.api import explain, flush
from seglog_broker.api.broker import Broker
from seglog_broker.api.fetch import WATCHED_A_TURN
from seglog_broker.engine import topics
from seglog_broker.engine.topics import LOGS_A_TURN, TopicService
from seglog_broker.engine.turns import LOOKUPS_A_TURN, RESULTS_MAX
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.directory import offset_checkpoints
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log import cleaning
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.truncation import LogRetention, LogTruncation, RetentionJudge
from seglog_broker.storage.segment.segment_indexes import SegmentIndexes
from seglog_broker.storage.segment.segment_log import SegmentLog
from seglog_broker.testing.forgetful import PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import InvalidRequestError, OutOfResourcesError
from seglog_protocol.frames import decode_value
from tests.appends import append_request
from tests.logs import ManualClock
from tests.support import ON_SOURCES
from tests.unit.broker import brokers
from tests.unit.broker.api.scene import append

pytestmark = ON_SOURCES

MANY: Final = 1_000
BATCH: Final = encode_batch([(1, b"k", b"v", ())])


async def open_broker(count: int = 1) -> Broker:
    broker = brokers.open_broker()
    for number in range(count):
        await broker.create_topic(messages.CreateTopicRequest(f"t{number or ''}", 2))
    return broker


class Counter:
    """Counts the work between two turns of the loop: partitions looked up, topics described, and so on."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch) -> None:
        self.most = self.all = self._now = 0
        self._is_over = False
        self._patch = patch
        for name in ("readable", "partition"):
            self.count(broker.partitions, name)
        self.count(TopicService, "_describe")

    def count(self, whose: object, name: str) -> None:
        """Also count the calls of a function."""
        self._patch.setattr(whose, name, self._counting(getattr(whose, name)))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            self._now += 1
            self.all += 1
            self.most = max(self.most, self._now)
            return function(*arguments, **more)

        return counted

    async def during(
        self, work: Callable[[], Awaitable[object]], *, most: int = LOOKUPS_A_TURN, least: int = 0
    ) -> None:
        """Work that does less than twice ``most`` between two turns, and at ``least`` so much in all."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._turns)
            await work()
            self._is_over = True
        assert self.most <= 2 * most
        assert self.all >= least

    async def _turns(self) -> None:
        while not self._is_over:
            self._now = 0
            await trio.lowlevel.checkpoint()


@pytest.fixture
def counter(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(broker, monkeypatch)


def requests(topic: str) -> list[messages.Request]:
    return [
        messages.OffsetsRequest([messages.OffsetsPartition(topic, 0, 5)] * MANY),
        messages.OffsetsRequest([messages.OffsetsPartition(topic)] * (MANY // 2)),
        messages.FlushRequest([messages.FlushPartition(topic, 0)] * MANY),
        messages.TruncateRequest([messages.TruncatePartition(topic, 0, 0)] * MANY),
        messages.TopicsRequest(["t", *(f"{topic}-{number}" for number in range(MANY))]),
    ]


@pytest.mark.parametrize("topic", ["t", "unknown"])
@pytest.mark.parametrize("number", range(5), ids=["offsets", "whole topics", "flush", "truncate", "topics"])
async def test_a_long_list_is_processed_in_turns(number: int, topic: str, broker: Broker, counter: Counter) -> None:
    counter.count(broker.partitions, "unknown_topic")
    counter.count(flush, "wait_durable")
    await counter.during(lambda: broker.answer(requests(topic)[number]))
    assert counter.all >= MANY // 2 or topic == "unknown"


@pytest.mark.parametrize("topic", ["t", "unknown"])
async def test_a_fetch_of_many_partitions_is_made_in_turns(topic: str, broker: Broker, counter: Counter) -> None:
    await append(broker, BATCH)
    request = messages.FetchRequest([messages.FetchPartition(topic, 0, 0)] * MANY, max_wait_ms=0)
    assert broker.fetch_now(request) is None, "not at once"

    async def fetch() -> None:
        with await broker.fetch(request) as answer:
            assert len(answer.reply.partitions) == MANY

    await counter.during(fetch)


@pytest.mark.parametrize("count", [1, WATCHED_A_TURN + 1])
async def test_fetches_that_wait_watch_so_many_partitions_in_all_and_one_more_is_refused(
    count: int, autojump_clock: MockClock, broker: Broker
) -> None:
    broker._fetches.watched_max = 2 * count + 2
    request = messages.FetchRequest([messages.FetchPartition("t", 0, 0)] * count, max_wait_ms=1_000)

    async def poll() -> None:
        with await broker.fetch(request) as answer:
            assert answer.size == 0

    for _ in range(2):  # what has ended makes room
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(OutOfResourcesError, match="ask again later"):
                await broker.fetch(request)
            assert not broker.wait_for(request, Waiter())


async def test_large_fetches_that_one_append_wakes_look_at_their_partitions_in_turns(
    autojump_clock: MockClock, broker: Broker, counter: Counter
) -> None:
    """None misses records that come while it looks: an append in each of its turns wakes it again."""
    broker._fetches.watched_a_turn = 100
    request = messages.FetchRequest(
        [messages.FetchPartition("t", 1, 0)] * MANY + [messages.FetchPartition("t", 0, 0)], max_wait_ms=300_000
    )
    counter.count(broker.partitions, "find_readable")
    found: list[int] = []

    async def poll() -> None:
        with await broker.fetch(request) as answer:
            found.append(answer.size)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(poll)
            for _ in range(5):
                await trio.lowlevel.checkpoint()  # they look at partition 1 still
            await append(broker, BATCH)

    began = trio.current_time()
    await counter.during(work, most=100)
    assert trio.current_time() - began < 1
    assert found == [len(BATCH)] * 10


@pytest.mark.parametrize(("count", "at_once"), [(1, True), (LOOKUPS_A_TURN, True), (LOOKUPS_A_TURN + 1, False)])
async def test_a_fetch_that_fits_a_turn_is_answered_at_once(count: int, at_once: bool, broker: Broker) -> None:
    await append(broker, BATCH)
    answer = broker.fetch_now(messages.FetchRequest([messages.FetchPartition("t", 0, 0)] * count, max_wait_ms=0))
    assert (answer is not None) == at_once
    if answer is not None:
        with answer:
            assert len(answer.slices) == count


@pytest.mark.parametrize(("topic", "first"), [("t", 0), ("t", 50), ("unknown", 0)])
async def test_an_append_of_many_batches_is_made_in_turns(
    topic: str, first: int, broker: Broker, counter: Counter
) -> None:
    places = [
        messages.AppendPartition(topic, first + number % 2, len(BATCH)) for number in range(MANY)
    ]  # each looked up anew
    request = messages.AppendRequest(places, "os")
    await counter.during(append_request(broker, request, memoryview(bytearray(BATCH * MANY))).write_rest)
    assert counter.all == MANY if topic == "t" else counter.all >= MANY


async def test_two_long_requests_at_a_time_take_turns_with_each_other_too(broker: Broker, counter: Counter) -> None:
    """Otherwise a turn of the loop would grow with the number of hostile connections."""

    async def all_at_once() -> None:
        async with trio.open_nursery() as nursery:
            for request in [request for request in requests("t") for _ in range(5)]:
                nursery.start_soon(broker.answer, request)

    # Twenty-five first pieces, before each knows that it is long.
    await counter.during(all_at_once, most=13 * LOOKUPS_A_TURN, least=10 * MANY)


async def test_whole_topics_named_again_and_again_are_refused_beyond_what_a_reply_holds(broker: Broker) -> None:
    with pytest.raises(InvalidRequestError, match="several requests"):
        await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t")] * (RESULTS_MAX // 2 + 1)))


async def test_a_page_of_whole_configurations_is_cut_and_says_that_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "DESCRIBED_MAX", 10)
    broker = await open_broker(12)
    found: list[str] = []
    more = True
    while more:
        reply, payload = await broker.topics(
            messages.TopicsRequest(after=found[-1] if found else "", config=True, limit=10_000)
        )
        page = [topic["name"] for topic in decode_value(payload, "topics")]
        assert len(page) <= 10
        found, more = found + page, reply.more
    assert found == sorted(f"t{number or ''}" for number in range(12))
    broker.close()


async def test_the_logs_of_a_new_topic_are_opened_in_turns_and_of_added_partitions_too(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, counter: Counter
) -> None:
    counter.count(broker.directory.partitions, "new_log")
    await counter.during(lambda: broker.create_topic(messages.CreateTopicRequest("wide", 60)), most=LOGS_A_TURN)
    assert counter.all == 60
    altering = Counter(broker, monkeypatch)
    altering.count(broker.directory.partitions, "new_log")
    await altering.during(
        lambda: broker.alter_topic(messages.AlterTopicRequest("wide", partitions=120)), most=LOGS_A_TURN
    )
    assert altering.all == 60
    assert sum(topic == "wide" for topic, _ in broker.partitions) == 120
    await broker.delete_topic(messages.DeleteTopicRequest("wide"))
    assert broker.fs.exists("/data/t-0")
    assert not broker.fs.exists("/data/wide-119")


async def test_a_wide_topic_is_described_and_the_checkpoints_are_written_in_turns(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, counter: Counter
) -> None:
    await broker.create_topic(messages.CreateTopicRequest("wide", 150))
    counter.count(broker.partitions, "find_readable")
    await counter.during(lambda: broker.answer(messages.TopicsRequest(["wide"], config=True)), least=150)
    monkeypatch.setattr(offset_checkpoints, "LOGS_A_TURN", 20)
    expected = dict(broker.directory.partitions.encoded_checkpoints())
    looked_at = Counter(broker, monkeypatch)
    monkeypatch.setattr(
        LogTruncation, "first_base_on_disk", property(looked_at._counting(lambda log: log._log.segments.bases[0]))
    )
    await looked_at.during(broker.checkpoints.write, most=20, least=150)
    assert {path: read_file(broker.fs, path) for path in expected} == expected


async def test_a_partition_that_is_truncated_very_often_in_one_request_is_saved_once(
    broker: Broker, fs: ForgetfulFileSystem
) -> None:
    await append(broker, BATCH)
    fs.operations.clear()
    await broker.answer(messages.TruncateRequest([messages.TruncatePartition("t", 0, 1)] * MANY))
    renamed = [operation.path for operation in fs.operations if operation.name == "rename"]
    assert [path.rpartition("/")[2] for path in renamed].count("log-start-offset-checkpoint.tmp") <= 1


async def test_retention_looks_at_many_logs_in_turns(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, counter: Counter
) -> None:
    await broker.create_topic(messages.CreateTopicRequest("wide", 150))
    counter.count(LogRetention, "judge_segments")
    await counter.during(lambda: broker.expiry.check(list(broker.partitions.values()), TaskBoundary("retention")))
    assert counter.all == 152
    for number in range(20):
        await append(broker, BATCH, topic="wide", partition=number)
    dropping = Counter(broker, monkeypatch)
    dropping.count(LogTruncation, "drop_oldest")
    await dropping.during(
        lambda: broker.expiry.check(list(broker.partitions.values()), TaskBoundary("retention")), most=1
    )
    assert dropping.all == 20


SEGMENTS: Final = 200
_disks: list[ForgetfulFileSystem] = []


async def many_segments(**settings: messages.ConfigValue) -> Broker:
    """A broker that was just started, with SEGMENTS segments in one partition, which were made for the first test."""
    if not _disks:
        broker = await open_broker()
        config: dict[str, messages.ConfigValue] = {"segment.bytes": 1024, "retention.ms": -1}
        await broker.create_topic(messages.CreateTopicRequest("long", 1, config))
        large = encode_batch([(1, b"k", bytes(600), ())])
        for _ in range(SEGMENTS):
            await append(broker, large, topic="long")
        assert not broker.close()
        assert isinstance(broker.fs, ForgetfulFileSystem)
        _disks.append(broker.fs)
    broker = brokers.open_broker(_disks[0].found_after(PROCESS_KILL))
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    await broker.alter_topic(messages.AlterTopicRequest("long", wanted))
    assert len(broker.partitions["long", 0].log.segments) == SEGMENTS
    return broker


@pytest.mark.parametrize("work", ["judge", "_now_made"])
@pytest.mark.parametrize("by", ["explain", "lag"])
async def test_very_many_segments_are_explained_in_turns(by: str, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "SEGMENTS_A_TURN", 40)
    broker = await many_segments(retention_bytes=10**12)
    counter = Counter(broker, monkeypatch)
    counter.count(RetentionJudge if work == "judge" else SegmentList, work)

    async def segments() -> None:
        _, payload = await broker.answer(messages.ExplainSegmentsRequest("long", 0, after=189))
        assert [segment.base_offset for segment in messages.decode_segments(payload)] == list(range(190, 200))

    async def lag() -> None:
        reply, _ = await broker.answer(messages.LagRequest([messages.LagPartition("long", 0, 190)]))
        assert isinstance(reply, messages.LagReply)
        assert reply.partitions[0].segment == 190

    await counter.during(segments if by == "explain" else lag, most=40, least=190)
    broker.close()


@pytest.mark.parametrize("lag", ["min", "max"])
@pytest.mark.parametrize("by", ["explain", "compaction"])
async def test_cleanable_segments_are_searched_in_turns(by: str, lag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lags: dict[str, messages.ConfigValue] = {f"{lag}_compaction_lag_ms": ManualClock().now_ms() - 1}
    monkeypatch.setattr(cleaning, "LOOKS_A_TURN", 60)
    broker = await many_segments(cleanup_policy="compact", **lags)
    log = broker.partitions["long", 0].log
    counter = Counter(broker, monkeypatch)
    counter.count(*(SegmentIndexes, "_ensure_time_index") if lag == "min" else (SegmentLog, "batches"))
    explaining = messages.ExplainSegmentsRequest("long", 0, after=10, limit=10)

    async def work() -> None:
        if by == "explain":
            await broker.answer(explaining)
        else:
            await broker.scheduler.retry_after_cold_read(log.cleaning.find_cleanable)

    await counter.during(work, most=60, least=SEGMENTS - 1)
    assert log.cleaning.find_cleanable() == await broker.scheduler.retry_after_cold_read(log.cleaning.find_cleanable)
    assert log.cleaning.find_cleanable().until_offset == SEGMENTS - 1
    broker.close()


@pytest.mark.parametrize("by", ["fetch", "offsets"])
async def test_a_look_up_by_time_passes_over_very_many_segments_in_turns(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await many_segments()
    counter = Counter(broker, monkeypatch)
    counter.count(SegmentIndexes, "_ensure_time_index")

    async def fetch() -> None:
        with await broker.fetch(
            messages.FetchRequest([messages.FetchPartition("long", 0, timestamp=2)], max_wait_ms=0)
        ) as answer:
            assert answer.reply.partitions[0].offset == SEGMENTS

    async def offsets() -> None:
        assert (await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("long", 0, 2)]))).partitions[
            0
        ].offset is None

    await counter.during(fetch if by == "fetch" else offsets, least=SEGMENTS - 1)
    broker.close()
