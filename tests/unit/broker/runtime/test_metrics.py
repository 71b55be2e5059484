"""The broker's metrics: each changes when it should; turns of the loop; and what a power cut would take."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TypeVar, TypeVarTuple, get_args

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.request_errors import count_errors
from seglog_broker.runtime.metrics import SLOT_SECONDS, SLOTS, LoopMetrics, NotDurable, NotDurablePart, RecentMax
from seglog_broker.runtime.stall_watch import StallWatch, watch_stalls
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import errors, messages
from tests.appends import append_batch
from tests.logs import ManualClock, batch
from tests.support import examples
from tests.unit.broker.api.scene import append
from tests.unit.broker.brokers import Stopwatch, open_broker

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with closing(open_broker()) as broker:
        yield broker


def numbers(broker: Broker) -> dict[str, float]:
    return broker.read_metrics().metrics


def moved(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The metrics that changed, and by how much."""
    return {
        name: after.get(name, 0) - before.get(name, 0)
        for name in before.keys() | after.keys()
        if after.get(name, 0) != before.get(name, 0)
    }


# --- The names --------------------------------------------------------------------------------------------------------

NAMES = (
    "answers_waiting append_bytes_total appends_total ballast_bytes cold_reads_total connections_cut_total "
    "connections_idle_total connections_open connections_total disk_free_bytes disk_free_inodes disk_full "
    "duplicates_total errors_total expired_bytes_total fetch_bytes_total fetches_waited_total fetches_waiting "
    "fsync_seconds_max fsyncs_total log_lines_lost_total loop_busy_seconds loop_stall_seconds memory_waiting "
    "memory_waits_total open_files partitions partitions_read_only_until_room partitions_recovered_total "
    "partitions_recovering recovery_bytes_total recovery_ratio request_memory_bytes requests_total "
    "retention_next_loss_seconds scrub_findings_total scrub_last_pass_timestamp_seconds scrub_pass_ratio "
    "scrub_passes_total scrubbed_bytes_total scrubbed_segments_total segments_expired_total segments_rolled_total "
    "tls_handshakes_failed_total topics uptime_seconds"
)
"""Without a label: those that the last release told."""


def test_the_names_are_those_of_the_last_release(broker: Broker) -> None:
    counts = broker.metrics.listener("native")
    labels = {"requests": list(messages.REQUESTS), "appends": list(get_args(messages.Ack)), "errors": [*errors.BY_CODE]}
    for api in labels["requests"]:
        counts.of(api).requests += 1
    broker.metrics.appends.update(labels["appends"])
    counts.errors.update(labels["errors"])
    labelled = {f"{name}_{label.lower()}_total" for name, values in labels.items() for label in values}
    assert {*NAMES.split(), *labelled} == set(numbers(broker))


# --- Appends, fetches, flushes ----------------------------------------------------------------------------------------


async def test_appends_are_counted_by_ack_level_and_in_bytes(autojump_clock: object, broker: Broker) -> None:
    await broker.create_topic(messages.CreateTopicRequest("t", 1))
    encoded = batch(b"v")
    before = numbers(broker)
    levels: list[messages.Ack] = ["none", "os", "os", "disk", "disk", "disk"]
    for ack in levels:
        await append(broker, encoded, ack=ack)
    assert moved(before, numbers(broker)) == {
        "appends_none_total": 1,
        "appends_os_total": 2,
        "appends_disk_total": 3,
        "appends_total": 6,
        "append_bytes_total": 6 * len(encoded),
        "fsyncs_total": 3,
    }
    before = numbers(broker)
    await append(broker, encoded[:-1], encoded)
    assert moved(before, numbers(broker)) == {
        "appends_os_total": 1,
        "appends_total": 1,
        "append_bytes_total": len(encoded),
    }, "a refused batch is not counted"


async def test_acks_that_share_a_flush_count_it_once(broker: Broker) -> None:
    await broker.create_topic(messages.CreateTopicRequest("t", 1))
    encoded = batch(b"v")
    pending = [append_batch(broker, encoded, ack="disk") for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for one in pending:
            nursery.start_soon(one.wait)
    assert numbers(broker)["fsyncs_total"] == 1


class SlowDisk(InlineOffload):
    """A disk whose flushes take as long as ``seconds`` says, one after the other."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self.seconds = list(seconds)

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        await trio.sleep(self.seconds.pop(0))
        return await super().commit(fs, flushes)


async def test_the_longest_flush_is_kept(autojump_clock: object) -> None:
    broker = open_broker(offload=SlowDisk(0.5, 2, 1))
    await broker.create_topic(messages.CreateTopicRequest("t", 1))
    longest = []
    for _ in range(3):
        await append(broker, batch(b"v"), ack="disk")
        longest.append(numbers(broker)["fsync_seconds_max"])
    assert longest == [0.5, 2, 2]
    broker.close()


async def test_waiting_fetches_are_counted_while_they_wait_and_that_they_did(
    autojump_clock: object, broker: Broker
) -> None:
    await broker.create_topic(messages.CreateTopicRequest("t", 2))
    both = messages.FetchRequest(
        [messages.FetchPartition("t", 0, 0), messages.FetchPartition("t", 1, 0)], max_wait_ms=1000
    )

    async def fetch() -> None:
        (await broker.fetch(both)).close()

    assert numbers(broker)["fetches_waiting"] == 0
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert numbers(broker)["fetches_waiting"] == 3, "one each, although each waits for two partitions"
    after = numbers(broker)
    assert (after["fetches_waiting"], after["fetches_waited_total"]) == (0, 3)


# --- How it is right now ----------------------------------------------------------------------------------------------


async def test_topics_partitions_open_files_and_uptime_are_as_they_are_now(broker: Broker) -> None:
    before = numbers(broker)
    assert (before["topics"], before["partitions"], before["uptime_seconds"]) == (0, 0, 0)
    await broker.create_topic(messages.CreateTopicRequest("t", 3))
    clock = broker.clock
    assert isinstance(clock, ManualClock)
    clock.now += 1500
    difference = moved(before, numbers(broker))
    assert difference == {"topics": 1, "partitions": 3, "uptime_seconds": 1.5, "open_files": 3}
    assert isinstance(broker.fs, ForgetfulFileSystem)
    assert numbers(broker)["open_files"] == len([path for path in broker.fs.open_files if path.startswith("/data/t-")])
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    assert moved(before, numbers(broker)) == {"uptime_seconds": 1.5}
    clock.now -= 10_000
    assert numbers(broker)["uptime_seconds"] == 0, "a wall clock may go back; the uptime is never negative"


def test_errors_are_counted_wherever_they_stand_in_a_reply() -> None:
    counts: Counter[str] = Counter()
    unknown = errors.UnknownTopicError("no")
    count_errors(counts, unknown)
    count_errors(
        counts, messages.AppendReply([messages.AppendResult("t", 0, 5), messages.AppendResult("u", 0, error=unknown)])
    )
    count_errors(counts, messages.TopicsReply(unknown=[unknown, unknown]))
    count_errors(counts, messages.HelloReply("seglog", "fake", {}, {}, partitions=3))
    assert counts == {"UNKNOWN_TOPIC": 4}


# --- Stalls -----------------------------------------------------------------------------------------------------------


async def test_a_slow_step_of_a_task_is_a_stall_and_waiting_is_none() -> None:
    stopwatch = Stopwatch()
    broker = open_broker()
    with watch_stalls(broker.metrics.loop, stopwatch):
        await trio.testing.wait_all_tasks_blocked()
        assert numbers(broker)["loop_stall_seconds"] == 0
        for seconds in (0.25, 0.125):
            stopwatch.now += seconds  # this very step of this task is slow
            await trio.testing.wait_all_tasks_blocked()
            assert numbers(broker)["loop_stall_seconds"] == 0.25, "the longest is kept"
    stopwatch.now += 5
    await trio.testing.wait_all_tasks_blocked()
    assert numbers(broker)["loop_stall_seconds"] == 0.25, "nobody watches a loop whose broker has ended"


def test_the_time_between_two_turns_is_no_stall() -> None:
    stopwatch = Stopwatch()
    counted = LoopMetrics()
    watch = StallWatch(counted, stopwatch)
    watch.before_io_wait(0)  # it was put in amid a turn, of which it does not know the beginning
    stopwatch.now += 60
    watch.after_io_wait(0)
    stopwatch.now += 0.5
    watch.before_io_wait(0)
    stopwatch.now += 60
    watch.after_io_wait(0)
    watch.before_io_wait(0)
    assert counted.stall_seconds_max == 0.5


# --- Turns of the loop: the longest of the last minute, against a list of all -----------------------------------------


MINUTE = SLOT_SECONDS * SLOTS


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 1000)), max_size=60), st.floats(0, 200))
def test_the_largest_of_the_last_minute_is_told(noted: list[tuple[float, int]], wait: float) -> None:
    """All of a minute count, and none that is older than a minute and a slot."""
    recent, now, all_noted = RecentMax(), 0.0, [(0.0, 0.0)]
    for pause, value in noted:
        now += pause
        recent.add(value, now)
        all_noted.append((now, value))
    now += wait
    least = max((value for moment, value in all_noted if now - moment < MINUTE), default=0)
    most = max((value for moment, value in all_noted if now - moment <= MINUTE + SLOT_SECONDS), default=0)
    assert least <= recent.at(now) <= most


def test_turns_are_counted_with_what_they_cost() -> None:
    loop = LoopMetrics()
    loop.add_turn(0.25, 0.5, 1000.0)
    loop.add_turn(0.125, 1.0, 1001.0)
    assert (loop.turns, loop.busy_seconds) == (2, 0.375)
    assert (loop.longest_turn.at(1010), loop.longest_stall.at(1010)) == (0.25, 1.0)
    assert (loop.longest_turn.at(1100), loop.longest_stall.at(1100)) == (0.0, 0.0), "of the last minute"
    assert (loop.busy_seconds_max, loop.stall_seconds_max) == (0.25, 1.0), "of all"


# --- What a power cut would take, as it is counted, against what the log says of itself -------------------------------


def test_what_is_appended_while_a_flush_is_under_way_stays() -> None:
    clock = Stopwatch()
    every = NotDurable(clock)
    first, second = NotDurablePart(every), NotDurablePart(every)
    assert (every.size, every.age_seconds()) == (0, 0)
    first.add(10)
    clock.now += 2
    second.add(5)
    assert (every.size, every.age_seconds()) == (15, 2)
    first.begin_flush()
    first.add(3)
    clock.now += 1
    assert (every.size, every.age_seconds(), first.size) == (18, 3, 13), "not on the disk before the flush has ended"
    first.end_flush(is_durable=True)
    assert (every.size, every.age_seconds(), first.size) == (8, 1, 3)
    first.begin_flush()
    clock.now += 1
    first.add(1)
    first.end_flush(is_durable=False)
    assert (every.size, every.age_seconds(), first.size) == (9, 2, 4), "a flush that failed proves nothing"
    second.clear()
    first.begin_flush()
    first.end_flush(is_durable=True)
    first.end_flush(is_durable=True)
    assert (every.size, every.since) == (0, {})


async def test_bytes_are_counted_until_they_are_on_the_disk_or_deleted(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2))
    encoded = batch(b"v")
    counted = broker.metrics.not_durable
    for _ in range(3):
        await append(broker, encoded, ack="os")
    await append(broker, encoded, partition=1, ack="os")
    assert (counted.size, len(counted.since)) == (4 * len(encoded), 2)
    await append(broker, encoded, ack="disk")
    assert (counted.size, broker.partitions["t", 1].not_durable.size) == (len(encoded), len(encoded))
    await append(broker, encoded, ack="os")
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    assert (counted.size, counted.since) == (0, {})
    broker.close()


async def test_records_that_retention_deletes_next_are_counted_by_their_partition(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2, {"retention.ms": 1000}))
    now = broker.clock.now_ms()
    await append(broker, batch(b"a", b"b", timestamp=now - 1001), ack="os")
    await append(broker, batch(b"c", timestamp=now), ack="os")
    await append(broker, batch(b"d", timestamp=now), partition=1, ack="os")
    assert [broker.partitions["t", number].expired_on_arrival for number in range(2)] == [2, 0]
    broker.close()
