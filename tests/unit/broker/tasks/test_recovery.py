"""Recovery while the broker serves: other partitions, errors meanwhile, the worker processes, and the end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome, recover_partition
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_broker.workers import pool
from seglog_broker.workers.messages import BUG, DIED, AnswerT, JobKind, JobT, Progress, WorkerError
from seglog_protocol import messages
from seglog_protocol.errors import (
    PartitionOfflineError,
    PartitionRecoveringError,
    SeglogError,
    StorageError,
    UnknownTopicError,
)
from tests.appends import append_batch
from tests.logs import batch, flip_bit, read_around
from tests.unit.broker.tasks import living_broker
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, alter, append, delete, fetch, with_topic


def living(fs: FileSystem, *flags: str, **changes: Any) -> AbstractAsyncContextManager[Broker]:
    """A broker for which no log is so small that it recovers it before it serves."""
    return living_broker.living(fs, LoopClock(), *flags, **{"in_line_bytes": 0, **changes})


@dataclass
class Workers(InlineOffload):
    """Recoverers that the test starts; ``deaths``: partition directory -> how many die over it first."""

    deaths: dict[str, int] = field(default_factory=dict)
    kind: str = DIED
    begun: list[str] = field(default_factory=list)
    at_work: int = 0
    most_at_work: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._gate = trio.Event()

    def let_go(self) -> None:
        self._gate.set()

    async def finish(self) -> None:
        self.let_go()
        await wait_all_tasks_blocked()

    @asynccontextmanager
    async def recoverer(self, fs: FileSystem, clock: Clock, descriptors: Sequence[int]) -> AsyncIterator[pool.Workers]:
        del descriptors
        yield _Worker(self, fs, clock)

    async def recover(self, fs: FileSystem, clock: Clock, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
        name = job.directory.rpartition("/")[2]
        self.begun.append(name)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            progress(100)
            await self._gate.wait()
            if self.deaths.get(name):
                self.deaths[name] -= 1
                raise WorkerError(self.kind, "ended with status -9")
            return recover_partition(fs, clock, job)
        finally:
            self.at_work -= 1


@dataclass
class _Worker(pool.Workers):
    workers: Workers
    fs: FileSystem
    clock: Clock

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = lambda _: None
    ) -> AnswerT:
        assert isinstance(job, RecoveryJob)
        return cast(AnswerT, await self.workers.recover(self.fs, self.clock, job, progress))


async def killed(count: int = 6, *, partitions: int = 1) -> ForgetfulFileSystem:
    """A disk with a topic ``t``, unchanged since a clean stop, and ``big``, which was written to before the kill."""
    fs = TimedDisk(LoopClock())
    async with living(fs, tasks=()) as broker:
        await with_topic(broker)
        await with_topic(broker, "big", partitions, segment_bytes=1024)
        append(broker, 3)
    async with living(fs, tasks=()) as broker:
        for partition in range(partitions):
            append(broker, count + partition, topic="big", partition=partition)
        return fs.found_after(PROCESS_KILL)


async def error_of_append(broker: Broker, topic: str = "big") -> SeglogError | None:
    encoded = batch(b"more")
    return (await append_batch(broker, encoded, topic, ack="disk").wait()).partitions[0].error


async def test_partitions_that_need_no_recovery_are_served_while_others_are_recovered() -> None:
    fs, workers = await killed(), Workers()
    async with living(fs, offload=workers) as broker:
        assert set(broker.partitions) == {("t", 0)}
        assert workers.begun == ["big-0"]
        assert await error_of_append(broker, "t") is None
        assert (await fetch(broker, 0, "t")).latest == 4
        assert isinstance(await error_of_append(broker), PartitionRecoveringError)
        await workers.finish()
        assert await error_of_append(broker) is None
        assert (await fetch(broker, 0, "big")).latest == 7
        assert broker.partitions["big", 0].log.leader_epoch == 1


async def test_every_request_to_a_recovering_partition_gets_a_retriable_error() -> None:
    fs, workers = await killed(), Workers()
    async with living(fs, offload=workers) as broker:
        found: list[SeglogError | None] = [await error_of_append(broker), (await fetch(broker, 0, "big")).error]
        offsets = (await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("big")]))).partitions
        found += [offsets[0].error]
        truncated = await broker.truncate(messages.TruncateRequest([messages.TruncatePartition("big", 0, 1)]))
        found += [truncated.partitions[0].error]
        with pytest.raises(PartitionRecoveringError) as caught:
            broker.explain(messages.ExplainRequest("big", 0, offset=0))
        for error in [*found, caught.value]:
            assert isinstance(error, PartitionRecoveringError)
            assert error.retriable
            assert (error.topic, error.partition, error.read_bytes, error.bytes) == ("big", 0, 100, 1536)


async def test_a_fetch_of_recovered_and_recovering_partitions_is_answered_at_once() -> None:
    fs, workers = await killed(), Workers()
    async with living(fs, offload=workers) as broker:
        request = messages.FetchRequest(
            [messages.FetchPartition("big", 0, 0), messages.FetchPartition("t", 0, 0)], max_wait_ms=60_000
        )
        answer = broker.fetch_now(request)
        assert answer is not None
        with answer:
            recovering, served = answer.reply.partitions
        assert isinstance(recovering.error, PartitionRecoveringError)
        assert (served.error, served.latest) == (None, 3)


async def test_progress_is_in_ping_in_the_metrics_and_in_the_log() -> None:
    fs, workers = await killed(partitions=2), Workers()
    with capture_logs() as logged:
        async with living(fs, offload=workers) as broker:
            size = 6 * 256 + 7 * 256
            hello = broker.hello()
            assert hello.recovery == {"partitions": 2, "read_bytes": 200, "bytes": size}
            assert (hello.partitions, hello.problems) == (3, [])
            metrics = broker.read_metrics().metrics
            assert (metrics["partitions_recovering"], metrics["partitions"]) == (2, 1)
            assert metrics["recovery_ratio"] == round(200 / size, 4)
            await workers.finish()
            assert broker.hello().recovery is None
            metrics = broker.read_metrics().metrics
            assert (metrics["partitions_recovering"], metrics["partitions_recovered_total"]) == (0, 2)
            assert metrics["recovery_ratio"] == 1
    events = [line for line in logged if line["event"].startswith(("recovery", "partition_recovered"))]
    assert [line["event"] for line in events] == [
        "recovery_started",
        "partition_recovered",
        "partition_recovered",
        "recovery_finished",
    ]
    assert (events[0]["partitions"], events[0]["bytes"], events[0]["processes"]) == (2, size, 2)
    assert {line["end_offset"] for line in events[1:3]} == {6, 7}


async def test_progress_of_a_partition_is_logged_only_now_and_then() -> None:
    class Slow(Workers):
        async def recover(self, fs: FileSystem, clock: Clock, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
            for _ in range(35):
                await trio.sleep(1)
                progress(10)
            return recover_partition(fs, clock, job)

    fs = await killed()
    with capture_logs() as logged:
        async with living(fs, offload=Slow()) as broker:
            while broker.recoveries:  # noqa: ASYNC110 - it tells the log, and nobody else
                await trio.sleep(1)
    told = [line for line in logged if line["event"] == "recovery_progress"]
    assert [line["read_bytes"] for line in told] == [100, 200, 300]


async def test_as_many_as_are_configured_work_side_by_side_the_largest_first() -> None:
    fs, workers = await killed(partitions=5), Workers()
    async with living(fs, "num.recovery.threads.per.data.dir=3", offload=workers) as broker:
        assert workers.begun == ["big-4", "big-3", "big-2"]
        await workers.finish()
        assert workers.begun == ["big-4", "big-3", "big-2", "big-1", "big-0"]
        assert workers.most_at_work == 3
        assert len(broker.partitions) == 6


async def test_recovered_partitions_are_in_the_checkpoint_and_not_read_after_another_crash() -> None:
    fs, workers = await killed(partitions=2), Workers()
    async with living(fs, offload=workers):
        await workers.finish()
        again = fs.found_after(POWER_LOSS)
    async with living(again, offload=Workers()) as broker:
        assert len(broker.partitions) == 3
        assert not any(opened.recovery for opened in broker.directory.report.opened.values())


# --- Processes that fail ----------------------------------------------------------------------------------------------


async def test_a_process_that_dies_costs_another_attempt() -> None:
    """A process that dies costs its partition another attempt and no other partition."""
    fs, workers = await killed(partitions=2), Workers(deaths={"big-0": 1})
    with capture_logs() as logged:
        async with living(fs, offload=workers) as broker:
            await workers.finish()
            assert set(broker.partitions) == {("t", 0), ("big", 0), ("big", 1)}
            assert workers.begun.count("big-0") == 2
            assert broker.hello().problems == []
    (line,) = [line for line in logged if line["event"] == "recovery_interrupted"]
    assert (line["topic"], line["partition"]) == ("big", 0)


async def test_a_partition_that_costs_two_processes_is_offline_and_named() -> None:
    fs, workers = await killed(partitions=2), Workers(deaths={"big-0": 5})
    async with living(fs, offload=workers) as broker:
        await workers.finish()
        assert workers.begun.count("big-0") == 2
        assert isinstance(await error_of_append(broker), PartitionOfflineError)
        (problem,) = broker.hello().problems
        assert "big-0 is offline" in problem
        assert "status -9" in problem
        assert ("big", 1) in broker.partitions
    async with living(fs, offload=InlineOffload()) as broker:
        assert len(read_around(broker.partitions["big", 0].log)) == 6, "the next start tries again"


async def test_an_error_of_a_process_that_did_not_die_is_not_retried() -> None:
    fs, workers = await killed(), Workers(deaths={"big-0": 1}, kind=BUG)
    async with living(fs, offload=workers) as broker:
        await workers.finish()
        assert workers.begun == ["big-0"]
        assert isinstance(await error_of_append(broker), PartitionOfflineError)


async def test_damage_found_by_a_process_is_skipped_by_readers_and_logged() -> None:
    fs = await killed()
    flip_bit(fs, "/data/big-0/00000000000000000000.log", 600)
    with capture_logs() as logged:
        async with living(fs) as broker:
            assert [r.offset for r in read_around(broker.partitions["big", 0].log)] == [0, 1, 3, 4, 5]
            assert "offsets 2 to 2 are damaged" in broker.hello().problems[0]
    (line,) = [line for line in logged if line["event"] == "partition_recovered" and line["topic"] == "big"]
    assert (line["log_level"], line["damaged"]) == ("warning", [(2, 3, "damaged")])


# --- Topics meanwhile -------------------------------------------------------------------------------------------------


async def test_a_topic_is_deleted_while_it_is_recovering() -> None:
    fs, workers = await killed(partitions=4), Workers()
    async with living(fs, offload=workers) as broker:
        assert workers.begun == ["big-3", "big-2"]
        await delete(broker, "big")
        assert workers.at_work == 0
        assert (len(broker.recoveries), broker.hello().recovery) == (0, None)
        assert isinstance(await error_of_append(broker), UnknownTopicError)
        await with_topic(broker, "big")
        assert await error_of_append(broker) is None
        workers.let_go()
        await trio.sleep(200)
        assert len(workers.begun) == 2
        assert not [name for name in fs.list_directory("/data") if "-delete" in name]


async def test_a_failed_deletion_lets_the_recovery_continue() -> None:
    fs, workers = await killed(partitions=3), Workers()
    async with living(fs, offload=workers) as broker:
        fs.inject(Fault("rename", "seglog-topics.json.tmp", error=5))
        fs.inject(Fault("pwritev", "seglog-topics.json.tmp", error=5))
        with pytest.raises(StorageError):
            await delete(broker, "big")
        fs.heal()
        await workers.finish()
        assert {key for key in broker.partitions if key[0] == "big"} == {("big", number) for number in range(3)}
        assert not broker.recoveries


async def test_a_cancelled_deletion_lets_the_recovery_continue() -> None:
    class Slow(Workers):
        async def recover(self, fs: FileSystem, clock: Clock, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
            try:
                return await super().recover(fs, clock, job, progress)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)  # a process that takes its time to end

    fs, workers = await killed(), Slow()
    async with living(fs, offload=workers) as broker:
        with trio.move_on_after(1) as impatient:
            await delete(broker, "big")
        assert impatient.cancelled_caught
        workers.let_go()
        await trio.sleep(20)
        assert ("big", 0) in broker.partitions
        assert not broker.recoveries


async def test_a_topic_can_be_described_and_altered_while_it_is_recovering() -> None:
    fs, workers = await killed(), Workers()
    async with living(fs, offload=workers) as broker:
        (described,) = messages.decode_descriptions(
            (await broker.topics(messages.TopicsRequest(["big"], config=True)))[1]
        )
        assert described.segment_bytes == 1024
        await broker.alter_topic(messages.AlterTopicRequest("big", config={"segment.bytes": 2048}, partitions=2))
        await alter(broker, **{"retention.ms": 5000})
        assert set(broker.partitions) == {("t", 0), ("big", 1)}
        await workers.finish()
        assert broker.partitions["big", 0].log.config.segment_bytes == 2048


# --- The end of it ----------------------------------------------------------------------------------------------------


async def test_a_stop_in_the_middle_is_no_clean_stop_and_the_next_start_goes_on() -> None:
    fs, workers = await killed(partitions=2), Workers()
    async with living(fs, offload=workers):
        pass
    assert workers.at_work == 0
    assert not fs.exists("/data/.kafka_cleanshutdown")
    async with living(fs) as broker:
        assert [broker.partitions["big", number].log.log_end_offset for number in range(2)] == [6, 7]
    assert fs.exists("/data/.kafka_cleanshutdown")


async def test_producer_ids_are_given_meanwhile_only_if_it_is_known_which_were() -> None:
    fs, workers = await killed(), Workers()
    async with living(fs, offload=workers) as broker:
        with pytest.raises(PartitionRecoveringError):
            await broker.init_producer()
        await workers.finish()
        assert (await broker.init_producer()).producer_id == 0
        append(broker, topic="big")
        again, workers = fs.found_after(PROCESS_KILL), Workers()
    async with living(again, offload=workers) as broker:
        assert len(broker.recoveries) == 1
        assert (await broker.init_producer()).producer_id == 1000


async def test_little_is_read_before_the_broker_serves() -> None:
    fs, workers = await killed(partitions=3), Workers()
    async with living(fs, offload=workers, in_line_bytes=2 * 128 * 1024 + 13 * 256) as broker:
        assert set(broker.partitions) == {("t", 0), ("big", 0), ("big", 1)}, "the smallest two"
        assert workers.begun == ["big-2"]
