"""A closed segment that is missing in the middle of a log is reported after the start, before a reader finds it."""

from collections.abc import Mapping

from seglog_broker.api.broker import Broker
from seglog_broker.server import TASKS
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.tasks.scrub import holes_between
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.messages import AppendPartition, AppendRequest, CreateTopicRequest, FetchPartition, FetchRequest
from tests.appends import append_request
from tests.logs import batch_of_size, flip_bit
from tests.support import each_case
from tests.unit.broker.brokers import open_broker

_CONFIG: Mapping[str, str | int | float] = {
    "segment.bytes": 1024,
    "index.interval.bytes": 150,
    "segment.ms": 10**9,
    "retention.ms": -1,
}


async def _written(
    batches: int = 43, *, clean: bool = True, config: Mapping[str, str | int | float] = _CONFIG
) -> Broker:
    """A stopped log directory with segments of ten batches of one record."""
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await broker.create_topic(CreateTopicRequest("t", 1, dict(config)))
    for number in range(batches):
        data = memoryview(bytearray(batch_of_size(100, timestamp=1_700_000_000_000 + number)))
        await append_request(broker, AppendRequest([AppendPartition("t", 0, len(data))], "disk"), data).wait()
    if clean:
        assert broker.close() == []
    else:
        broker.directory.abandon()
    return broker


def _unlink(broker: Broker, base: int) -> ForgetfulFileSystem:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    for suffix in (".log", ".index", ".timeindex", ".checksum"):
        path = f"/data/t-0/{base:020d}{suffix}"
        if fs.exists(path):
            fs.unlink(path)
    return fs


@each_case("clean", [True, False])
@each_case("gone", [[10], [20], [30], [10, 20], [10, 30]])
async def test_segments_gone_from_the_middle_are_named_at_once_and_to_readers(clean: bool, gone: list[int]) -> None:
    before = await _written(clean=clean)
    [fs, *_] = [_unlink(before, base) for base in gone]
    broker = open_broker(fs)
    await TASKS["hole search"](broker)
    damaged = broker.partitions["t", 0].log.state.damaged
    missing = {offset for d in damaged if d.reason == "missing" for offset in range(d.start_offset, d.end_offset)}
    assert missing == {offset for base in gone for offset in range(base, base + 10)}
    assert any(f"t-0: offsets {gone[0]} to " in problem for problem in broker.hello().problems)
    request = FetchRequest([FetchPartition("t", 0, gone[0])])
    with await broker.fetch(request) as answer:
        [result] = answer.reply.partitions
        assert result.gaps
        assert (result.gaps[0].start, result.gaps[0].reason) == (gone[0], "missing")
    broker.close()
    again = open_broker(fs)
    assert again.partitions["t", 0].log.state.damaged == damaged, "remembered"
    await TASKS["hole search"](again)
    assert again.partitions["t", 0].log.state.damaged == damaged, "and noted once"


async def test_in_a_compacted_log_no_hole_is_reported() -> None:
    before = await _written(43)
    fs = _unlink(before, 10)
    write_file_atomically(fs, "/data/cleaner-offset-checkpoint", b"0\n1\nt 0 20\n")
    broker = open_broker(fs)
    await TASKS["hole search"](broker)
    assert broker.partitions["t", 0].log.state.damaged == []


async def test_no_bit_of_a_closed_segment_or_its_index_makes_up_a_hole() -> None:
    before = await _written(23)
    fs = before.fs
    assert isinstance(fs, ForgetfulFileSystem)
    for suffix, positions in ((".index", range(8 * 5)), (".log", range(600, 1000))):
        path = f"/data/t-0/{10:020d}{suffix}"
        for position in positions:
            if position >= fs.stat(path).size:
                break
            flip_bit(fs, path, position, position % 8)
            assert holes_between(fs, "/data/t-0", [(10, 20)]) == [], (suffix, position)
            flip_bit(fs, path, position, position % 8)


async def test_the_work_for_a_segment_does_not_grow_with_it() -> None:
    before = await _written(23)
    fs = before.fs
    assert isinstance(fs, ForgetfulFileSystem)
    operations: list[str] = []
    fs.on_operation = lambda operation: operations.append(operation.name)
    assert holes_between(fs, "/data/t-0", [(0, 10), (10, 20), (999, 1000)]) == []
    fs.on_operation = None
    assert len(operations) < 30
