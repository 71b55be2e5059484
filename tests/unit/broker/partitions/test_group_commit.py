"""Group commit: which acks share a round, and that an error in one partition does not affect the others."""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.partitions.group_commit import (
    IDLE_ROUNDS_MIN,
    IDLE_SHARE,
    LITTLE_SECONDS,
    PAUSE_FACTOR,
    ROUNDS_ON_LOOP,
)
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Operation
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    PartitionReadOnlyError,
    SeglogError,
    StorageError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tests.appends import OneAppend, append_batch, append_request
from tests.logs import ManualClock, batch, batch_of_size
from tests.support import each_case
from tests.unit.broker.inspect.check.support import check
from tests.unit.broker.runtime.test_request_memory import begin

PARTITIONS = 5


class HeldRounds(InlineOffload):
    """Each round, and each flush of a checkpoint, waits until the test releases it; ``rounds`` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.checkpoints = 0
        self.is_holding = False
        self.breaks = False
        self._gates: list[trio.Event] = []

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        self.rounds += 1
        await self._pass()
        if self.breaks:
            raise ZeroDivisionError
        return await super().commit(fs, flushes)

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        self.checkpoints += 1
        await self._pass()
        return fn(*args)

    async def _pass(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_holding:
            gate = trio.Event()
            self._gates.append(gate)
            await gate.wait()

    @property
    def waiting(self) -> int:
        return len(self._gates)

    def let_one_go(self) -> None:
        self._gates.pop(0).set()

    async def end_one(self) -> None:
        self.let_one_go()
        await wait_all_tasks_blocked()


class Running:
    """A broker on a forgetful disk with one topic, and the requests to it."""

    def __init__(self, **config: str | int) -> None:
        self.fs = ForgetfulFileSystem()
        self.offload = HeldRounds()
        self.config: dict[str, Any] = {key.replace("_", "."): value for key, value in config.items()}
        self.broker = self.open()

    def open(self, fs: ForgetfulFileSystem | None = None) -> Broker:
        config, _ = load_config(None, "", {}, ["log.dir=/data"])
        return Broker.open(config, fs or self.fs, ManualClock(), self.offload)

    async def __aenter__(self) -> Self:
        await self.broker.create_topic(messages.CreateTopicRequest("t", PARTITIONS, self.config))
        self.fs.operations.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.offload.is_holding = False
        self.broker.close()
        assert self.fs.open_files == []

    def append(self, *partitions: int, data: bytes | None = None, ack: messages.Ack = "disk") -> OneAppend:
        """Append with one request."""
        encoded = data or batch(b"v")
        request = messages.AppendRequest(
            [messages.AppendPartition("t", number, len(encoded)) for number in partitions], ack
        )
        return append_request(self.broker, request, memoryview(bytearray(encoded * len(partitions))))

    def roll(self, partition: int) -> None:
        log = self.broker.partitions["t", partition].log
        count = len(log.segments)
        while len(log.segments) == count:
            self.append(partition, data=batch_of_size(512))

    async def flush(self, *partitions: int, topic: str = "t") -> list[messages.FlushResult]:
        asked = [messages.FlushPartition(topic, number) for number in partitions]
        return (await self.broker.flush(messages.FlushRequest(asked))).partitions

    @property
    def synced(self) -> list[str]:
        """Partition directories in which something was synced, in order."""
        return [
            op.path.removeprefix("/data/").partition("/")[0]
            for op in self.fs.operations
            if op.name in {"fdatasync", "sync_directory"}
        ]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with Running() as running:
        yield running


async def error_of(pending: OneAppend) -> SeglogError | None:
    return (await pending.wait()).partitions[0].error


async def test_acks_requested_during_a_round_share_the_next_one_across_partitions() -> None:
    async with Running() as running, trio.open_nursery() as nursery:
        running.offload.is_holding = True
        await begin(nursery, running.append(0).wait)
        for number in range(20):
            await begin(nursery, running.append(number % PARTITIONS).wait)
        assert running.offload.rounds == 1
        await running.offload.end_one()
        assert running.synced == ["t-0"]
        assert running.offload.rounds == 2
        await running.offload.end_one()
        assert running.offload.rounds == 2
        assert sorted(running.synced[1:]) == ["t-0", "t-1", "t-2", "t-3", "t-4"]


@pytest.mark.parametrize("who", ["leader", "follower"])
async def test_a_cancelled_waiter_does_not_stop_the_round_for_the_others(who: str) -> None:
    async with Running() as running, trio.open_nursery() as nursery:
        running.offload.is_holding = True
        await begin(nursery, running.append(0).wait)
        scopes = {name: trio.CancelScope() for name in ("leader", "follower")}
        left = dict.fromkeys(scopes, False)

        async def wait(name: str, pending: OneAppend) -> None:
            with scopes[name]:
                await pending.wait()
            left[name] = True

        for number, name in enumerate(scopes, 1):
            await begin(nursery, wait, name, running.append(number))
        scopes[who].cancel()
        await wait_all_tasks_blocked()
        assert left == {"leader": False, "follower": who == "follower"}, "who leads stays until the round is over"
        await running.offload.end_one()
        await running.offload.end_one()
        assert left == {"leader": True, "follower": True}
        assert [running.broker.partitions["t", number].log.durable_end_offset for number in range(3)] == [1, 1, 1]


async def test_a_failed_fsync_is_an_error_for_its_partition(running: Running) -> None:
    """A failed fsync is an error for all that wait for that partition and for no other."""
    running.fs.inject(Fault("fdatasync", "t-2/00000000000000000000.log", error=errno.EIO))
    pending = [running.append(number % PARTITIONS) for number in range(3 * PARTITIONS)]
    errors: list[SeglogError | None] = [None] * len(pending)

    async def wait(number: int) -> None:
        errors[number] = await error_of(pending[number])

    with capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            for number in range(len(pending)):
                nursery.start_soon(wait, number)
    assert running.offload.rounds == 1
    for number, error in enumerate(errors):
        if number % PARTITIONS == 2:
            assert isinstance(error, PartitionReadOnlyError)
            assert (error.retriable, error.topic, error.partition) == (False, "t", 2)
        else:
            assert error is None
    assert [(entry["event"], entry["partition"]) for entry in logged] == [("partition_read_only", 2)]


async def test_a_flush_waits_for_earlier_records() -> None:
    """A flush is answered when all earlier records survive a power cut and adds none."""
    async with Running(segment_bytes=1024) as running:
        for number in range(3):
            while len(running.broker.partitions["t", number].log.segments) < 3:
                running.append(number, data=batch_of_size(512), ack="os")
        ends = {number: running.broker.partitions["t", number].log.log_end_offset for number in range(PARTITIONS)}
        running.fs.operations.clear()
        results = await running.flush(*range(PARTITIONS))
        assert results == [messages.FlushResult("t", number, durable=ends[number]) for number in range(PARTITIONS)]
        assert running.offload.rounds == 1
        assert not any(op.name == "pwritev" and op.path.endswith(".log") for op in running.fs.operations)
        found = running.open(running.fs.found_after(POWER_LOSS))
        assert {number: found.partitions["t", number].log.log_end_offset for number in ends} == ends
        found.close()
        assert [result.durable for result in await running.flush(0, 4)] == [ends[0], 0]
        assert running.offload.rounds == 1, "there was nothing to be done"


async def test_an_error_of_one_partition_in_a_flush_is_that_partitions_result(running: Running) -> None:
    running.append(0, 1, 2, ack="os")
    running.fs.inject(Fault("fdatasync", "t-1/00000000000000000000.log", error=errno.EIO))
    before, failed, after, missing = await running.flush(0, 1, 2, PARTITIONS)
    assert (before.durable, after.durable) == (1, 1)
    assert isinstance(failed.error, PartitionReadOnlyError)
    assert isinstance(missing.error, UnknownPartitionError)
    [unknown] = await running.flush(0, topic="nope")
    assert isinstance(unknown.error, UnknownTopicError)


@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_duplicate_waits_for_the_fsync_of_the_first_one_and_fails_with_it(is_failing: bool) -> None:
    data = encode_batch([(-1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    async with Running() as running, trio.open_nursery() as nursery:
        if is_failing:
            running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
        running.offload.is_holding = True
        await begin(nursery, running.append(0, data=data).wait)
        again = running.append(0, data=data)
        assert running.broker.metrics.duplicates == 1
        assert again.reply is None
        running.offload.let_one_go()
        [result] = (await again.wait()).partitions
        assert isinstance(result.error, PartitionReadOnlyError) == is_failing
        assert bool(result.duplicate) != is_failing
        [third] = (await running.append(0, data=data).wait()).partitions
        assert isinstance(third.error, PartitionReadOnlyError) == is_failing
        assert running.offload.rounds == 1


async def test_a_new_segments_directory_is_synced() -> None:
    """The directory of a new segment is synced before the ack and its failure is final."""
    async with Running(segment_bytes=1024) as running:
        running.roll(0)
        running.roll(1)
        running.fs.operations.clear()
        running.fs.inject(Fault("sync_directory", "t-1", error=errno.EIO))
        reply = await running.append(0, 1).wait()
        assert reply.partitions[0].error is None
        assert isinstance(reply.partitions[1].error, PartitionReadOnlyError)
        names = [op.name for op in running.fs.operations if op.path == "/data/t-0" or op.path.startswith("/data/t-0/")]
        assert names[-3:] == ["fdatasync", "fdatasync", "sync_directory"], "both segments, then the name of the new one"
        found = running.open(running.fs.found_after(POWER_LOSS))
        assert found.partitions["t", 0].log.log_end_offset == running.broker.partitions["t", 0].log.log_end_offset
        found.close()


async def test_a_retriable_error_is_reported_to_all_waiters_and_the_next_round_succeeds() -> None:
    async with Running(segment_bytes=1024) as running:
        running.roll(0)
        running.fs.inject(Fault("sync_directory", "t-0", error=errno.EMFILE))
        first, second = running.append(0), running.append(0)
        errors: list[SeglogError | None] = []

        async def wait(pending: OneAppend) -> None:
            errors.append(await error_of(pending))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, first)
            nursery.start_soon(wait, second)
        for error in errors:
            assert type(error) is StorageError
            assert (error.retriable, error.facts["partition"]) == (True, 0)
        assert await error_of(running.append(0)) is None
        assert running.broker.hello().problems == []


async def test_too_few_descriptors_fail_an_fsync(running: Running) -> None:
    """No file is opened there, so whatever the errno is, the pages are in doubt."""
    running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.ENOMEM))
    assert isinstance(await error_of(running.append(0)), PartitionReadOnlyError)


async def test_a_read_only_partition_takes_no_part_in_a_round_and_delays_no_other(running: Running) -> None:
    pending = running.append(0, 1)
    running.broker.partitions["t", 0].log.state_file.mark_read_only("an fsync failed")
    reply = await pending.wait()
    assert isinstance(reply.partitions[0].error, PartitionReadOnlyError)
    assert reply.partitions[1].error is None
    assert [name for name in running.synced if name == "t-1"]


async def test_a_topic_deleted_while_its_round_runs_is_unknown_to_those_who_wait(running: Running) -> None:
    errors: list[SeglogError | None] = []

    async def wait(pending: OneAppend) -> None:
        errors.append(await error_of(pending))

    running.offload.is_holding = True
    async with trio.open_nursery() as nursery:
        await begin(nursery, wait, running.append(0))
        nursery.start_soon(wait, running.append(1))  # for the round after it
        await wait_all_tasks_blocked()
        await running.broker.delete_topic(messages.DeleteTopicRequest("t"))
        running.offload.let_one_go()
    assert [type(error) for error in errors] == [UnknownTopicError] * 2
    assert running.offload.rounds == 1, "nothing was left to sync"


async def test_a_checkpoint_and_a_round_never_sync_the_same_log_at_once() -> None:
    async with Running(segment_bytes=1024) as running, trio.open_nursery() as nursery:
        running.roll(0)
        partition = running.broker.partitions["t", 0]
        running.offload.is_holding = True
        await begin(nursery, running.broker.checkpoints.sync, partition)
        pending = running.append(0)
        nursery.start_soon(pending.wait)
        await begin(nursery, running.append(1).wait)
        assert (running.offload.checkpoints, running.offload.rounds) == (1, 1), "the other partition does not wait"
        running.roll(0)  # so that there is something to sync for the second one, too, and a later record for a round
        last = running.append(0)
        nursery.start_soon(last.wait)
        nursery.start_soon(running.broker.checkpoints.sync, partition)
        while running.offload.waiting:  # the log asserts that they do not meet
            await running.offload.end_one()
        assert (running.offload.checkpoints, running.offload.rounds) == (2, 2)
        assert pending.reply is not None
        assert last.reply is not None
        assert partition.log.durable_end_offset == partition.log.log_end_offset


async def test_a_flush_that_a_bug_ends_counts_as_failed(running: Running) -> None:
    pending = running.append(0)
    running.offload.breaks = True
    with pytest.raises(ZeroDivisionError):
        await pending.wait()
    running.offload.breaks = False
    assert pending.reply is None
    assert await error_of(running.append(1, 0)) is None
    assert isinstance(await error_of(running.append(0)), PartitionReadOnlyError)


# --- A failed fsync is final, wherever it fails -----------------------------------------------------------------------


async def fails_in_a_round(running: Running) -> None:
    running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    assert isinstance(await error_of(running.append(0)), PartitionReadOnlyError)


async def fails_with_the_directory(running: Running) -> None:
    running.roll(0)
    running.fs.inject(Fault("sync_directory", "t-0", error=errno.EIO))
    assert isinstance(await error_of(running.append(0)), PartitionReadOnlyError)


async def fails_in_a_checkpoint(running: Running) -> None:
    running.roll(0)
    pending = running.append(0)
    running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    assert await running.broker.checkpoints.sync(running.broker.partitions["t", 0]) is None
    assert isinstance(await error_of(pending), PartitionReadOnlyError)


async def fails_when_a_write_cannot_be_taken_back(running: Running) -> None:
    running.fs.inject(Fault("pwritev", "t-0/00000000000000000000.log", short=7))
    running.fs.inject(Fault("pwritev", "t-0/00000000000000000000.log", error=errno.EIO, nth=2))
    running.fs.inject(Fault("truncate", "t-0/00000000000000000000.log", error=errno.EIO))
    assert isinstance(await error_of(running.append(0)), StorageError)


Failing = Callable[[Running], Awaitable[None]]


@each_case(
    "fails",
    [
        fails_in_a_round,
        fails_with_the_directory,
        fails_in_a_checkpoint,
        fails_when_a_write_cannot_be_taken_back,
    ],
)
async def test_a_failed_fsync_or_write_is_final(fails: Failing) -> None:
    """A failed fsync or write is final logged reported by ping and remembered after a restart."""
    async with Running(segment_bytes=1024) as running:
        assert await error_of(running.append(0)) is None
        with capture_logs() as logged:
            await fails(running)
            refused = await error_of(running.append(0))
        assert isinstance(refused, PartitionReadOnlyError)
        assert not refused.retriable
        told = [entry for entry in logged if entry["event"] == "partition_read_only"]
        assert [(entry["topic"], entry["partition"], entry["reason"]) for entry in told] == [("t", 0, refused.reason)]
        assert any(f"t-0 is read-only because {refused.reason}" in text for text in running.broker.hello().problems)
        assert await error_of(running.append(1)) is None, "the others go on"
        found = running.open(running.fs.found_after(POWER_LOSS))
        await still_read_only(found)
        found.close()
        running.broker.close()
        running.broker = running.open()
        await still_read_only(running.broker)
        running.broker.close()
        check(running.fs, repair=True)
        running.broker = running.open()
        assert running.broker.hello().problems == []
        assert await error_of(running.append(0)) is None


async def still_read_only(broker: Broker) -> None:
    encoded = batch(b"v")
    reply = await append_batch(broker, encoded, ack="disk").wait()
    assert isinstance(reply.partitions[0].error, PartitionReadOnlyError)
    assert any("t-0 is read-only" in text for text in broker.hello().problems)


async def test_a_failed_fsync_during_a_stop() -> None:
    """An fsync that fails while the broker stops is final too and the stop is not called clean."""
    running = Running()
    await running.broker.create_topic(messages.CreateTopicRequest("t", PARTITIONS, {}))
    assert await error_of(running.append(0, 1)) is None
    os_only = batch(b"v")
    append_batch(running.broker, os_only)
    running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    with capture_logs() as logged:
        running.broker.close()
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["stop_not_clean"]
    assert not running.fs.exists("/data/.kafka_cleanshutdown")
    assert PartitionState.load(running.fs.found_after(POWER_LOSS), "/data/t-0").read_only is not None
    running.broker = running.open()
    await still_read_only(running.broker)
    running.broker.close()


async def test_a_stop_with_a_read_only_partition_is_not_called_clean(running: Running) -> None:
    """Its files may lack bytes that were written: a start must read and verify them."""
    await fails_in_a_round(running)
    with capture_logs() as logged:
        running.broker.close()
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["stop_not_clean"]
    assert not running.fs.exists("/data/.kafka_cleanshutdown")
    assert b"t 0 1" not in running.fs.snapshot()["/data/recovery-point-offset-checkpoint"]
    running.broker = running.open()
    log = running.broker.partitions["t", 0].log
    assert (log.durable_end_offset, log.log_end_offset) == (0, 1)


async def test_an_fsync_that_fails_while_a_start_recovers_is_final_too() -> None:
    """The next start would find the same bytes in memory, and its fsync would succeed."""
    running = Running()
    await running.broker.create_topic(messages.CreateTopicRequest("t", PARTITIONS, {}))
    assert await error_of(running.append(0, 1)) is None
    found = running.fs.found_after(PROCESS_KILL)
    found.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    broker = running.open(found)
    await still_read_only(broker)
    assert broker.partitions["t", 0].log.durable_end_offset == 0
    assert broker.partitions["t", 1].log.durable_end_offset == 1
    broker = running.open(found.found_after(PROCESS_KILL))
    await still_read_only(broker)
    assert broker.partitions["t", 0].log.durable_end_offset == 0
    broker.close()
    running.broker.close()


# --- By a task of its own ---------------------------------------------------------------------------------------------


async def test_with_a_task_that_leads_the_round_those_who_listen_need_none() -> None:
    async with Running() as running, trio.open_nursery() as nursery:
        heard: list[int] = []
        pending = [running.append(number) for number in range(2)]
        assert not pending[0].listen(lambda: heard.append(0)), "nobody leads it"
        running.broker.sync_soon(nursery.start_soon)
        running.broker.sync_soon(nursery.start_soon)
        for number, one in enumerate(pending):
            assert one.listen(partial(heard.append, number))
        await wait_all_tasks_blocked()
        assert heard == [0, 1]
        assert all(one.reply is not None for one in pending)
        assert running.synced == ["t-0", "t-1"], "in one round"
        running.broker.sync_soon(nursery.start_soon)
        assert not nursery.child_tasks, "there is nothing to sync"


async def test_the_task_that_leads_a_round_ends_it_also_if_it_is_cancelled() -> None:
    async with Running() as running, trio.open_nursery() as nursery:
        running.offload.is_holding = True
        pending = running.append(0)
        running.broker.sync_soon(nursery.start_soon)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            assert pending.reply is None
            await running.offload.end_one()
            assert pending.reply is not None


async def test_after_an_error_that_nobody_expected_the_next_round_runs(running: Running) -> None:
    def broken() -> Flush:
        raise ZeroDivisionError

    first = running.broker.partitions["t", 0]
    failing = running.append(0)
    prepare, first.log.prepare_flush = first.log.prepare_flush, broken
    with pytest.raises(ZeroDivisionError):
        running.broker.sync_now()
    first.want_durable()
    with pytest.raises(ZeroDivisionError):
        await failing.wait()
    first.log.prepare_flush = prepare
    assert await error_of(running.append(0)) is None


async def test_a_bug_in_noting_an_outcome_is_an_error_for_its_partition_and_the_round_ends(running: Running) -> None:
    log = running.broker.partitions["t", 0].log
    finish = log.finish_flush
    noted: list[Flush] = []

    def broken(flush: Flush, error: OSError | None) -> None:
        noted.append(flush)
        raise ZeroDivisionError

    log.finish_flush = broken
    failing, other = running.append(0), running.append(1)
    with capture_logs() as said:
        assert isinstance(await error_of(failing), StorageError)
    assert await error_of(other) is None
    assert [line["event"] for line in said if line["log_level"] == "error"] == ["flush_outcome_not_noted"]
    log.finish_flush = finish
    finish(noted.pop(), None)
    assert await error_of(running.append(0, 1)) is None


# --- On the loop ------------------------------------------------------------------------------------------------------


async def test_a_round_on_the_loop_has_ended_when_it_returns(running: Running) -> None:
    first, second = running.append(0), running.append(1)
    assert first.reply is None
    running.broker.sync_now()
    assert first.reply is not None
    assert second.reply is not None, "the round is for all that wait"
    assert running.synced == ["t-0", "t-1"]
    running.broker.sync_now()
    assert running.synced == ["t-0", "t-1"], "nothing waits any more"


async def test_no_round_begins_on_the_loop_while_another_is_under_way() -> None:
    async with Running() as running, trio.open_nursery() as nursery:
        running.offload.is_holding = True
        await begin(nursery, running.append(0).wait)
        late = running.append(0)
        running.broker.sync_now()
        assert late.reply is None
        running.offload.is_holding = False
        running.offload.let_one_go()
        assert await error_of(late) is None


async def test_a_failed_sync_on_the_loop_is_the_answer_to_those_who_wait_for_it(running: Running) -> None:
    failing, fine = running.append(0), running.append(1)
    running.fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    running.broker.sync_now()
    assert isinstance(await error_of(failing), PartitionReadOnlyError)
    assert await error_of(fine) is None


async def test_after_a_slow_sync_the_loop_waits_for_none_for_a_while(mock_clock: MockClock, running: Running) -> None:
    first = running.append(0)
    running.fs.on_operation = lambda _: mock_clock.jump(0.1)
    running.broker.sync_now()
    running.fs.on_operation = None
    assert first.reply is not None
    second = running.append(0)
    running.broker.sync_now()
    assert second.reply is None
    assert await error_of(second) is None, "a task syncs it"
    mock_clock.jump(0.1 * PAUSE_FACTOR)
    third = running.append(0)
    running.broker.sync_now()
    assert third.reply is not None


async def test_the_loop_waits_for_rounds_while_nobody_else_is_served(mock_clock: MockClock) -> None:
    """One round in so many goes through the kernel again, and shows whether that is still so."""
    mock_clock.rate = 0  # no sync takes long
    async with Running() as running:
        for _ in range(IDLE_ROUNDS_MIN):
            assert await error_of(running.append(0, 1)) is None
        assert running.offload.rounds == IDLE_ROUNDS_MIN
        for again in range(1, 4):
            for _ in range(ROUNDS_ON_LOOP):
                assert await error_of(running.append(0, 1)) is None
            assert running.offload.rounds == IDLE_ROUNDS_MIN + again - 1
            assert await error_of(running.append(0, 1)) is None
            assert running.offload.rounds == IDLE_ROUNDS_MIN + again
        assert running.synced.count("t-0") == IDLE_ROUNDS_MIN + 3 * (ROUNDS_ON_LOOP + 1)


@pytest.mark.parametrize(("served", "is_on_loop"), [(2, True), (3, False)])
async def test_others_who_are_served_during_rounds_keep_these_off_the_loop(
    mock_clock: MockClock, served: int, is_on_loop: bool
) -> None:
    """One request in IDLE_SHARE is nobody."""
    mock_clock.rate = 0  # no sync takes long
    async with Running() as running:
        counts, rounds = running.broker.metrics.listener("native"), 3 * IDLE_ROUNDS_MIN

        def serve(operation: Operation) -> None:
            if operation.name == "fdatasync":
                counts.of("fetch").requests += served

        running.fs.on_operation = serve
        for _ in range(rounds):
            counts.of("append").requests += 2 * IDLE_SHARE
            assert await error_of(running.append(0)) is None
        running.fs.on_operation = None
        assert (running.offload.rounds < rounds) == is_on_loop


async def test_a_slow_sync_sends_the_next_rounds_to_the_kernel(mock_clock: MockClock) -> None:
    mock_clock.rate = 0
    async with Running() as running:
        for _ in range(IDLE_ROUNDS_MIN):
            assert await error_of(running.append(0)) is None

        def slow(operation: Operation) -> None:
            if operation.name == "fdatasync":
                mock_clock.jump(0.1)

        running.fs.on_operation = slow
        assert await error_of(running.append(0)) is None
        running.fs.on_operation = None
        assert running.offload.rounds == IDLE_ROUNDS_MIN
        for number in range(1, 4):
            assert await error_of(running.append(0)) is None
            assert running.offload.rounds == IDLE_ROUNDS_MIN + number
        mock_clock.jump(0.1 * PAUSE_FACTOR)
        for _ in range(2):  # after a pause the first one may have much to sync
            assert await error_of(running.append(0)) is None
        assert running.offload.rounds == IDLE_ROUNDS_MIN + 4


@pytest.mark.parametrize("why", ["another partition", "a pause"])
async def test_what_may_be_much_is_not_synced_on_the_loop(mock_clock: MockClock, why: str) -> None:
    """A partition that the round before did not sync, or long ago, may have anything to sync."""
    mock_clock.rate = 0  # no sync takes long
    async with Running() as running:
        for _ in range(IDLE_ROUNDS_MIN + 1):
            assert await error_of(running.append(0)) is None
        assert running.offload.rounds == IDLE_ROUNDS_MIN
        if why == "a pause":
            mock_clock.jump(LITTLE_SECONDS)
        much = (0,) if why == "a pause" else (0, 1)
        assert await error_of(running.append(*much)) is None
        assert running.offload.rounds == IDLE_ROUNDS_MIN + 1
        assert await error_of(running.append(*much)) is None
        assert running.offload.rounds == IDLE_ROUNDS_MIN + 1
