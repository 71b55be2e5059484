"""A full disk at a start after a crash: partitions can be read, and are recovered when there is room."""

import errno

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import IN_LINE_BYTES, Broker
from seglog_broker.tasks.recovery import RETRY_SECONDS, ROOM_SECONDS
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem, Operation
from seglog_protocol import messages
from seglog_protocol.errors import DiskFullError, SeglogError, UnknownTopicError
from seglog_protocol.record_batch import parse_header
from tests.appends import append_batch
from tests.logs import add_bytes, batch_of_size, verify
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, delete, living, truncate, with_topic

NO_MARKS = ("seglog.disk.free.hard.bytes=0", "seglog.disk.free.soft.bytes=0")
COUNT = 11


async def killed(*, torn: bytes = b"") -> ForgetfulFileSystem:
    """A disk with a topic ``t`` of small segments, and ``idle``, unchanged since a clean stop."""
    fs = TimedDisk(LoopClock())
    async with living(fs, LoopClock(), tasks=()) as broker:
        await with_topic(broker, segment_bytes=1024)
        await with_topic(broker, "idle")
        append(broker, 3)
        append(broker, 3, topic="idle")
    async with living(fs, LoopClock(), tasks=()) as broker:
        append(broker, COUNT - 3)
        found = fs.found_after(PROCESS_KILL)
    if torn:
        add_bytes(found, f"/data/t-0/{8:020d}.log", torn)
    return found


def append_error(broker: Broker, topic: str = "t") -> SeglogError | None:
    encoded = batch_of_size(256, broker.clock.now_ms())
    return append_batch(broker, encoded, topic).result.error


async def read_through(broker: Broker, topic: str = "t") -> list[int]:
    """The base offset of every batch, as a consumer gets them."""
    offsets: list[int] = []
    offset = 0
    while True:
        request = messages.FetchRequest([messages.FetchPartition(topic, 0, offset)], max_wait_ms=0)
        with await broker.fetch(request) as answer:
            result = answer.reply.partitions[0]
            assert result.error is None, result
            if not result.size:
                return offsets
            for piece in answer.slices:
                data, position = piece.file.pread(piece.size, piece.position), 0
                while position < len(data):
                    header = parse_header(data, position)
                    offsets.append(header.base_offset)
                    position, offset = position + header.size, header.next_offset


@pytest.mark.parametrize("in_line_bytes", [IN_LINE_BYTES, 0], ids=["in line", "by a process"])
@pytest.mark.parametrize("torn", [b"", b"torn" * 20])
async def test_a_partition_without_room_for_its_recovery(torn: bytes, in_line_bytes: int) -> None:
    """A partition without room for its recovery can be read before it recovers by itself."""
    fs = await killed(torn=torn)
    fs.limit_free_bytes(0)
    before = fs.snapshot()
    async with living(fs, LoopClock(), *NO_MARKS, in_line_bytes=in_line_bytes) as broker:
        assert not broker.directory.report.offline
        for topic, count in (("t", COUNT), ("idle", 3)):
            assert await read_through(broker, topic) == list(range(count))
            error = append_error(broker, topic)
            assert isinstance(error, DiskFullError)
            assert error.retriable
            assert "until there is room" in error.message
        offsets = (await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t")]))).partitions[0]
        assert (offsets.earliest, offsets.latest, offsets.error) == (0, COUNT, None)
        assert broker.explain(messages.ExplainRequest("t", 0, offset=5)).base_offset == 5
        descriptions = messages.decode_descriptions((await broker.answer(messages.TopicsRequest()))[1])
        assert {d.name: d.segments for d in descriptions} == {"t": 3, "idle": 1}
        assert [
            problem for problem in broker.hello().problems if problem.startswith("t-0 is read-only until there is room")
        ]
        assert broker.read_metrics().metrics["partitions_read_only_until_room"] == 2
        told = broker.hello()
        assert (told.partitions, told.read_only_until_room, told.recovery) == (2, 2, None), "as far as the disk allows"
        logs = {path: content for path, content in before.items() if path.endswith(".log")}
        assert logs.items() <= fs.snapshot().items(), "nothing is cut before the cut can be made whole"
        fs.limit_free_bytes(1 << 20)
        await trio.sleep(2 * ROOM_SECONDS)
        assert append_error(broker) is None
        assert append_error(broker, "idle") is None
        assert await read_through(broker) == list(range(COUNT + 1))
        assert not broker.hello().problems
        assert broker.read_metrics().metrics["partitions_read_only_until_room"] == 0
        verify(fs, broker.partitions["t", 0].log)
    async with living(fs, LoopClock(), tasks=()) as broker:
        assert broker.directory.report.clean
        assert await read_through(broker) == list(range(COUNT + 1))


async def test_a_fetch_that_waits_through_a_recovery() -> None:
    """A fetch that waits at the end of a read only view gets records appended after the recovery."""
    fs = await killed()
    fs.limit_free_bytes(0)
    async with living(fs, LoopClock(), *NO_MARKS) as broker, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _wait() -> None:
            with await broker.fetch(
                messages.FetchRequest([messages.FetchPartition("t", 0, COUNT)], max_wait_ms=300_000)
            ) as answer:
                assert answer.reply.partitions[0].size == 256
                answered.append(trio.current_time())

        answered: list[float] = []
        await wait_all_tasks_blocked()
        fs.limit_free_bytes(1 << 20)
        await trio.sleep(2 * ROOM_SECONDS)
        append(broker)
        appended = trio.current_time()
        await trio.sleep(1)
        assert answered == [appended]


async def test_a_partition_without_room_can_be_deleted() -> None:
    """A partition that waits for its recovery can be deleted, which makes room for the others."""
    fs = await killed()
    fs.limit_free_bytes(0)
    async with living(fs, LoopClock(), *NO_MARKS) as broker:
        truncated = await truncate(broker, None)
        assert isinstance(truncated.error, DiskFullError)
        fs.inject(Fault("open", "seglog-topics.json.tmp", errno.ENOSPC))  # and there is no ballast
        fs.inject(Fault("rename", "t-0", errno.ENOSPC))
        with pytest.raises(DiskFullError):
            await delete(broker)
        assert await read_through(broker) == list(range(COUNT)), "it is as it was"
        assert fs.free_bytes("/data") == 0
        await delete(broker)
        error = append_error(broker)
        assert isinstance(error, UnknownTopicError)
        await trio.sleep(RETRY_SECONDS + ROOM_SECONDS)
        assert append_error(broker, "idle") is None
        assert not [path for path in fs.snapshot() if "/t-0" in path]
        assert not [path for path in fs.open_files if "/t-0" in path]


async def test_a_recovery_without_room_is_retried() -> None:
    """A recovery that finds no room though bytes are free is tried in growing distances."""
    fs = await killed()
    tries: list[float] = []

    def note(operation: Operation) -> None:
        if operation.path == "/data/t-0/leader-epoch-checkpoint.tmp" and operation.name == "open":
            tries.append(trio.current_time())

    fs.on_operation = note
    fs.inject(Fault("open", "t-0/leader-epoch-checkpoint.tmp", errno.EDQUOT, sticky=True))
    async with living(fs, LoopClock(), *NO_MARKS) as broker:
        await trio.sleep(10 * RETRY_SECONDS)
        assert 9 <= len(tries) <= 16
        assert await read_through(broker) == list(range(COUNT))
        assert append_error(broker, "idle") is None
        fs.heal()
        await trio.sleep(RETRY_SECONDS + ROOM_SECONDS)
        assert append_error(broker) is None


async def operations_of_a_start() -> list[Operation]:
    fs = await killed()
    async with living(fs, LoopClock(), *NO_MARKS, tasks=()):
        return [op for op in fs.operations if op.name in {"open", "pwritev", "rename", "fdatasync"}]


async def test_wherever_a_start_finds_no_room_everything_is_read_and_in_the_end_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operations = await operations_of_a_start()
    assert len(operations) > 15
    for number, (name, path) in enumerate({(op.name, op.path): None for op in operations}):
        fs = await killed(torn=b"x" if number % 2 else b"")
        fs.inject(Fault(name, path, errno.ENOSPC, sticky=True))
        async with living(fs, LoopClock(), *NO_MARKS) as broker:
            assert not broker.directory.report.offline, (name, path)
            for topic, count in (("t", COUNT), ("idle", 3)):
                assert await read_through(broker, topic) == list(range(count)), (name, path)
            fs.heal()
            await trio.sleep(2 * RETRY_SECONDS)
            served = broker.partitions["t", 0]
            if served.log.state.read_only is None:  # else an fsync failed, and that is final
                assert append_error(broker) is None, (name, path)
                assert await read_through(broker) == list(range(COUNT + 1)), (name, path)
                verify(fs, served.log)
        lost = fs.crash(POWER_LOSS)
        async with living(lost, LoopClock(), *NO_MARKS) as broker:
            assert await read_through(broker, "idle") == list(range(3)), (name, path)
