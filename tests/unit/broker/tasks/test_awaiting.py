"""A broker that serves while older segments are fetched from a backup: what waits, what is told, what comes first."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.api.lag import measure_lag
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.fetching import begin_directory
from seglog_broker.backup.points import PointStore
from seglog_broker.backup.restoring import GAP_BYTES, write_files
from seglog_broker.backup.source import open_source
from seglog_broker.backup.store import BackupError, FileEntry
from seglog_broker.config import load_config
from seglog_broker.inspect.check.partition import check_partition
from seglog_broker.inspect.check.plan import PartitionContext
from seglog_broker.inspect.dump.kinds import DumpOptions, NothingToDumpError, facts_of
from seglog_broker.inspect.findings import Code
from seglog_broker.inspect.readable import readable
from seglog_broker.kafka_export.source import ExportError, read_source
from seglog_broker.partitions.awaited_segments import AGAIN_SECONDS
from seglog_broker.storage.directory.identity import is_to_begin
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.awaited import Part, read_awaited
from seglog_broker.tasks.awaiting import RETRY_SECONDS, Beginning, begin_from_backup
from seglog_broker.testing.forgetful import PROCESS_KILL, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload, InlineWorkers
from seglog_broker.workers.fetch_jobs import BeginJob, Begun, FetchJob
from seglog_broker.workers.messages import Tools
from seglog_broker.workers.pool import Workers
from seglog_protocol import messages
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import LogDirectoryError, SegmentAwaitedError, StorageError
from tests.logs import ManualClock, contents, flip_bit, opened_directory, verify
from tests.support import each_case
from tests.unit.broker.backup.test_following import started
from tests.unit.broker.backup.test_taking import NEW_ID, Disk, config
from tests.unit.broker.tasks import living_broker
from tests.unit.broker.tasks.living_broker import LoopClock, bases, delete, log_of, truncate

RECORDS = 350  # in each of two partitions: segments of 56, so seven, the last of 14


def begun(records: int = 2 * RECORDS) -> tuple[ForgetfulFileSystem, Begun]:
    """A disk with a backup of ``t``, and a directory that was begun from it."""
    disk = Disk(records)
    disk.take()
    disk.fs.remove_tree("/data")
    return disk.fs, begin(disk.fs)


def begin(fs: FileSystem, place: str = "/backups", path: str = "/data", *, takes_over: bool = False) -> Begun:
    job = BeginJob(place, "", 0, path, None, takes_over, NEW_ID)
    return begin_directory(Tools(fs, ManualClock(), is_throttled=False), job, lambda _size: None)


class Fetchers(InlineOffload):
    """Fetchers that wait for each of their jobs until the test lets go of it; ``begun`` are the segments."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, int]] = []
        self.gate = trio.Event()

    @asynccontextmanager
    async def fetcher(self, fs: FileSystem, descriptors: Sequence[int]) -> AsyncIterator[Workers]:
        del descriptors
        yield _Held(self, fs)


class _Held(InlineWorkers):
    def __init__(self, fetchers: Fetchers, fs: FileSystem) -> None:
        super().__init__(fs)
        self._fetchers = fetchers

    async def run(self, kind: Any, job: Any, payload: Any = b"", *, progress: Any = lambda _: None) -> Any:
        assert isinstance(job, FetchJob)
        self._fetchers.begun.append((job.directory.rpartition("/")[2], job.base_offset))
        await self._fetchers.gate.wait()
        return await super().run(kind, job, payload, progress=progress)


@asynccontextmanager
async def serving(fetchers: Fetchers, records: int = 2 * RECORDS, *tasks: str) -> AsyncIterator[Broker]:
    """A broker that has begun from a backup, whose fetchers are held."""
    fs, _ = begun(records)
    clock = LoopClock()
    only = ("awaited segments", *tasks)
    async with living_broker.living(fs, clock, "log.retention.ms=-1", offload=fetchers, tasks=only) as broker:
        yield broker


async def fetch(broker: Broker, offset: int, *, wait_ms: int = 0, partition: int = 0) -> messages.FetchResult:
    request = messages.FetchRequest([messages.FetchPartition("t", partition, offset)], max_wait_ms=wait_ms, min_bytes=1)
    with await broker.fetch(request) as answer:
        return answer.reply.partitions[0]


def metric(broker: Broker, name: str) -> float:
    [found] = broker.monitoring.slices([name])
    assert found is not None
    value = found.samples[0][1]
    assert isinstance(value, int | float)
    return value


async def test_a_place_that_the_broker_is_to_go_on_with_is_to_be_taken_over() -> None:
    """Else it would serve, and could have its backup there only by losing again what it was given since."""
    fs, (settings, _) = ForgetfulFileSystem(), load_config(None, "", {}, ["log.dir=/data", "seglog.backup.to=/place"])
    with pytest.raises(LogDirectoryError, match=r"belongs to the lost directory.* add --take-over, else let seglog"):
        await begin_from_backup(settings, fs, InlineOffload(), Beginning("/place", None, takes_over=False))
    assert not fs.exists("/data")


def test_all_but_large_older_segments_is_there_at_once() -> None:
    fs, what = begun()
    awaited = [name for name in fs.list_directory("/data/t-0") if name.endswith(".awaited")]
    assert [int(name[:20]) for name in awaited] == [56 * number for number in range(6)]
    assert (what.awaited, what.awaited_size) == (12, sum(fs.stat(f"/data/t-0/{n[:20]}.log").size for n in awaited) * 2)
    directory = opened_directory(fs)
    assert not directory.report.problems
    assert directory.report.clean
    assert {log.log_end_offset for log in directory.logs.values()} == {RECORDS}


def test_of_an_object_with_many_segments_their_indexes_are_read_and_not_what_lies_between() -> None:
    fs, throttle, size = ForgetfulFileSystem(), Throttle(None, lambda: 0.0, lambda _: None), 3 * GAP_BYTES
    destination, content = DirectoryDestination(fs, "/place", throttle=throttle), random.Random(1).randbytes(4 * size)
    destination.put("a", [content])
    before, places = throttle.total, [0, 5, size, size + 100, 2 * size - 9, 3 * size]
    fs.load({"/new/": b""})
    parts = [Part("a", place, 5, crc32c(content[place : place + 5])) for place in places]
    files = [FileEntry(str(part.position), 5, 1, 2, (part,)) for part in parts]
    write_files(fs, destination, "/new", files, lambda _size: None)
    assert [fs.snapshot()[f"/new/{place}"] for place in places] == [content[place : place + 5] for place in places]
    assert throttle.total - before == 10 + 105 + 5 + 5


def test_what_a_killed_begin_has_left_is_removed_and_what_is_whole_is_not() -> None:
    disk = Disk(130)
    disk.take()
    disk.fs.remove_tree("/data")
    left: list[ForgetfulFileSystem] = []
    disk.fs.on_operation = lambda *_: left.append(disk.fs.found_after(PROCESS_KILL))
    begin(disk.fs)
    for fs in left:
        if is_to_begin(fs, "/data"):
            begin(fs)
        assert opened_directory(fs).report.clean
    with pytest.raises(StorageError, match="is not empty"):
        begin(left[-1])


def test_a_moment_of_a_continuous_backup_is_begun_and_its_place_taken_over() -> None:
    broker = started(200)
    what = begin(broker.fs, "/place", "/new", takes_over=True)
    assert what.awaited == 5
    marker = PointStore(broker.destination).marker()
    assert (marker.directory_id, marker.epoch, marker.follows[-1][1]) == (NEW_ID, 1, what.id)
    log = opened_directory(broker.fs, "/new", clock=broker.clock).logs["t", 0]
    assert (log.log_end_offset, len(log.segments.awaited)) == (200, 5)
    with pytest.raises(StorageError, match="single backups"):
        begin(begun(2)[0], path="/new", takes_over=True)


async def test_a_fetch_waits_for_its_segment_or_for_its_time_and_never_gets_out_of_range() -> None:
    fetchers = Fetchers()
    async with serving(fetchers) as broker:
        assert metric(broker, "seglog_awaited_segments") == 12
        left = metric(broker, "seglog_awaited_bytes")
        assert left > 12 * 50_000
        assert broker.hello().awaited == {"segments": 12, "bytes": left}
        began = trio.current_time()
        result = await fetch(broker, 3, wait_ms=700)
        assert isinstance(result.error, SegmentAwaitedError)
        assert (result.error.topic, result.error.partition, result.error.segment) == ("t", 0, 0)
        assert trio.current_time() - began == pytest.approx(0.7)
        assert (await fetch(broker, RECORDS - 1)).size
        assert (await fetch(broker, RECORDS)).error is None
        async with trio.open_nursery() as nursery:
            found: list[messages.FetchResult] = []

            async def read() -> None:
                found.append(await fetch(broker, 3, wait_ms=10_000))

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            fetchers.gate.set()
        assert found[0].error is None
        assert found[0].size
        assert found[0].earliest == 0
        await wait_all_tasks_blocked()
        assert broker.hello().awaited is None
        assert metric(broker, "seglog_awaited_bytes") == 0
        verify(broker.fs, log_of(broker))
        assert not [name for name in contents(broker.fs) if name.endswith((".awaited", ".tmp"))]


async def test_what_is_asked_for_comes_first_then_the_newest_of_each_partition() -> None:
    fetchers = Fetchers()
    async with serving(fetchers) as broker:
        assert fetchers.begun == [("t-0", 280)]
        await fetch(broker, 60)
        await fetch(broker, 60)
        await fetch(broker, 0, partition=1)
        fetchers.gate.set()
        await wait_all_tasks_blocked()
    assert fetchers.begun[1:4] == [("t-0", 56), ("t-1", 0), ("t-0", 224)]
    assert len(fetchers.begun) == len(set(fetchers.begun)) == 12


async def test_no_more_is_remembered_of_what_was_asked_for_than_that() -> None:
    async with serving(Fetchers()) as broker:
        broker.partitions.awaited.asked_max = 2
        for offset in (0, 60, 120):
            await fetch(broker, offset)
        assert [fetched.base_offset for fetched in broker.partitions.awaited.asked] == [0, 56]


async def test_offsets_by_time_and_lag_and_explanations_do_without_what_is_awaited() -> None:
    async with serving(Fetchers()) as broker:
        asked = messages.OffsetsRequest(
            [messages.OffsetsPartition("t", 0, 1000), messages.OffsetsPartition("t", 0, 1001)]
        )
        reply = await broker.offsets(asked)
        assert isinstance(reply.partitions[0].error, SegmentAwaitedError)
        assert (reply.partitions[1].error, reply.partitions[1].offset) == (None, None)
        [lag] = (await measure_lag(broker._explain, messages.LagRequest([messages.LagPartition("t", 0, 5)]))).partitions
        assert (lag.error, lag.timestamp, lag.newest_timestamp) == (None, None, 1000)
        explained, _ = await broker.explain_segments(messages.ExplainSegmentsRequest("t", 0))
        assert not explained.more
        with pytest.raises(SegmentAwaitedError):
            broker.explain(messages.ExplainRequest("t", 0, offset=5))


async def test_where_the_backup_is_away_it_is_told_and_tried_again() -> None:
    fetchers = Fetchers()
    fetchers.gate.set()
    fs, _ = begun()
    fs.rename("/backups", "/away")
    async with living_broker.living(fs, LoopClock(), offload=fetchers, tasks=("awaited segments",)) as broker:
        with capture_logs() as logged:
            await trio.sleep(RETRY_SECONDS * 3)
        [problem] = broker.hello().problems
        assert problem.startswith("12 segments of 702")
        assert "the backup in /backups has no files/" in problem
        assert not [entry for entry in logged if entry["event"] != "segments_do_not_arrive"]
        fs.rename("/away", "/backups")
        with capture_logs() as logged:
            await trio.sleep(AGAIN_SECONDS)
        assert broker.hello().problems == []
        assert [entry["event"] for entry in logged] == ["segments_arrive_again", "segments_arrived"]


async def test_one_that_is_damaged_there_holds_up_no_other() -> None:
    fs, _ = begun()
    newest = read_awaited(fs, "/data/t-0", 280).parts[0].name
    flip_bit(fs, f"/backups/{newest}", 50_000)
    async with living_broker.living(fs, LoopClock(), tasks=("awaited segments",)) as broker:
        await trio.sleep(RETRY_SECONDS * 2)
        assert list(log_of(broker).segments.awaited) == [280]
        [problem] = broker.hello().problems
        assert problem.startswith("1 segment of 58.5 KiB")
        assert "does not give 1 of them" in problem
        assert "is damaged" in problem
        assert not [name for name in contents(fs) if name.endswith(".tmp")]
        flip_bit(fs, f"/backups/{newest}", 50_000)
        await trio.sleep(AGAIN_SECONDS)
        assert broker.hello().problems == []
        verify(fs, log_of(broker))


@each_case("name", ["seglog-restore.json", f"t-1/{280:020d}.awaited"])
async def test_a_flipped_bit_in_what_names_the_bytes_is_told(name: str) -> None:
    fs, _ = begun()
    flip_bit(fs, f"/data/{name}", 30)
    async with living_broker.living(fs, LoopClock(), tasks=("awaited segments",)) as broker:
        await trio.sleep(RETRY_SECONDS)
        [problem] = broker.hello().problems
        assert "are not there yet" in problem


async def test_segments_and_topics_are_deleted_while_they_are_fetched() -> None:
    fetchers = Fetchers()
    async with serving(fetchers, 2 * RECORDS, "retention", "deletions") as broker:
        assert (await truncate(broker, 300)).error is None
        await trio.sleep(600)
        assert bases(broker) == [280, 336]
        assert metric(broker, "seglog_awaited_segments") == 7
        fetchers.gate.set()
        await wait_all_tasks_blocked()
        assert bases(broker) == [280, 336]
        assert (await fetch(broker, 300)).size
    fetchers = Fetchers()
    async with serving(fetchers) as broker:
        await delete(broker)
        fetchers.gate.set()
        await wait_all_tasks_blocked()
        assert not broker.partitions.awaited
        assert broker.hello().problems == []


async def test_no_compaction_and_no_scrub_before_it_is_whole() -> None:
    fetchers = Fetchers()
    async with serving(fetchers, 2 * RECORDS, "scrubs", "hole search", "compaction") as broker:
        await living_broker.alter(broker, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        await trio.sleep(60)
        assert broker.metrics.scrubbed_segments == 0
        assert broker.metrics.compaction_read_bytes == 0
        assert bases(broker)[:2] == [0, 56]
        fetchers.gate.set()
        await trio.sleep(60)
        assert broker.metrics.compaction_read_bytes > 0
        assert broker.hello().problems == []


def test_commands_on_files_say_what_is_awaited_and_read_no_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    fs, _ = begun()
    result = check_partition(fs, "/data/t-0", PartitionContext())
    assert [finding.code for finding in result.findings] == [Code.SEGMENT_AWAITED] * 6
    assert not result.plan.replace
    shown = "\n".join(readable(facts_of(fs, "/data/t-0", DumpOptions(verify=True))))
    assert shown.count("it is not there yet") == 6
    for name in (f"{0:020d}.log", f"{0:020d}.awaited"):
        with pytest.raises(NothingToDumpError, match="is not there yet"):
            list(facts_of(fs, f"/data/t-0/{name}", DumpOptions()))
    with pytest.raises(ExportError, match="still to come"):
        read_source(fs, "/data")
    with (
        pytest.raises(BackupError, match="6 segments of t-0 are still to come"),
        open_source(fs, ManualClock(), "/data", config()),
    ):
        pass
