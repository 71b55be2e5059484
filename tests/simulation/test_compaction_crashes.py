"""A crash at every single file operation of compaction: cleaning, promoting, installing, settling, removing.

Everything is durable before compaction begins, so whatever the crash takes, every key must still have its last value,
at the offset it always had; nothing may appear that was never written; no stray file stays; and the log can be
compacted again, to the end that an undisturbed run comes to.
"""

import random
import time

import pytest

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.storage.compaction import clean
from seglog_broker.storage.filesystem import write_file_atomically
from seglog_broker.storage.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    ForgetfulFileSystem,
    Operation,
)
from seglog_broker.storage.log_directory import LogDirectory
from seglog_broker.storage.partition_log import PartitionLog
from seglog_broker.storage.swap import SegmentSwap, discard_cleaned
from seglog_broker.storage.throttle import Throttle
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import parse_header
from tests.logs import ManualClock, read_around, verify

_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "index.interval.bytes": "150",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
_NOW = 1_700_000_000_000

Written = dict[int, tuple[bytes, bytes | None]]
"""By offset: key and value."""


def _config() -> BrokerConfig:
    return load_config(None, "", {}, ["log.dir=/data"])[0]


def _open(fs: ForgetfulFileSystem, now: int = _NOW) -> tuple[LogDirectory, PartitionLog]:
    directory = LogDirectory(fs, ManualClock(now), _config(), "/data")
    assert directory.open().offline == {}
    assert directory.report.problems == []
    if "t" not in directory.registry.topics:
        directory.create_topic("t", 1, dict(_TOPIC_CONFIG))
    return directory, directory.logs["t", 0]


def _fill(log: PartitionLog, written: Written, seed: int, count: int) -> None:
    """Batches of one to three records over twelve keys, a tombstone now and then."""
    chance = random.Random(seed)
    for _ in range(count):
        records = []
        for _ in range(chance.randint(1, 3)):
            key = b"key %d" % chance.randrange(12)
            value = None if chance.random() < 0.1 else b"%d" % chance.randrange(10**6) + b"." * chance.randrange(40)
            records.append((_NOW, key, value, ()))
        view = memoryview(bytearray(encode_batch(records)))
        base = log.append(view, parse_header(view)).base_offset
        written |= {base + number: (key, value) for number, (_, key, value, _) in enumerate(records)}
    log.flush()


def _compact(fs: ForgetfulFileSystem, directory: LogDirectory, log: PartitionLog) -> None:
    """What the compaction task does, in its order, without the loop."""
    result = clean(fs, log.plan_cleaning(log.find_cleanable(), _config()), Throttle(None, time.monotonic, time.sleep))
    log.note_compacted(result.first_dirty)
    state = log.prepare_state()
    assert state is not None
    state.run()
    log.finish_state(written=True)
    doomed = []
    for group in result.groups:
        if not group.unchanged:
            swap = SegmentSwap(fs, log.directory, group.sources)
            swap.promote()
            doomed.append(log.install_cleaned(swap, group.damaged))
            swap.settle()
    discard_cleaned(fs, log.directory)
    log.finish_cleaning(result)
    for path, content in directory.checkpoints():
        write_file_atomically(fs, path, content)
    for segments in doomed:
        segments.remove()


def _latest(written: Written) -> Written:
    last = {key: offset for offset, (key, _) in sorted(written.items())}
    return {offset: written[offset] for offset in last.values()}


def _check(found: ForgetfulFileSystem, written: Written) -> None:
    directory, log = _open(found)
    verify(found, log)
    assert log.state.damaged == []
    assert log.log_end_offset == max(written) + 1
    records = {record.offset: (record.key, record.value) for record in read_around(log)}
    assert records.items() <= written.items(), "a record that was never written"
    wanted = {offset: record for offset, record in _latest(written).items() if record[1] is not None}
    assert wanted.items() <= records.items(), "a key has lost its last value"
    newest = {key: value for _, (key, value) in sorted(records.items())}
    assert {key for key, value in newest.items() if value is not None} == {key for key, _ in wanted.values()}
    names = {name.split(".", 1)[1] for name in found.list_directory("/data/t-0") if name[0].isdigit()}
    assert names <= {"log", "index", "timeindex", "snapshot"}, "a stray file"
    _compact(found, directory, log)
    verify(found, log)
    again = {record.offset: (record.key, record.value) for record in read_around(log)}
    behind = {o: r for o, r in written.items() if o >= log.active.base_offset}
    kept = _latest({o: r for o, r in written.items() if o not in behind})
    assert {o: r for o, r in again.items() if o not in behind} == {o: kept[o] for o in again if o not in behind}
    assert directory.close() == []
    again_directory, log = _open(found)
    assert again_directory.report.clean
    verify(found, log)
    assert again_directory.close() == []
    assert found.open_files == []


@pytest.mark.parametrize(
    "policy",
    [PROCESS_KILL, POWER_LOSS, *(RANDOM(seed) for seed in range(4))],
    ids=["process kill", "power loss", *(f"random {seed}" for seed in range(4))],
)
def test_a_crash_before_any_operation_of_compaction_loses_no_key(policy: CrashPolicy) -> None:
    fs = ForgetfulFileSystem()
    directory, log = _open(fs)
    written: Written = {}
    _fill(log, written, 1, 36)
    _compact(fs, directory, log)  # so that there is a clean part too
    _fill(log, written, 2, 36)
    points = 0

    def crash_here(operation: Operation) -> None:
        nonlocal points
        points += 1
        try:
            _check(fs.found_after(policy), written)
        except BaseException as error:
            error.add_note(f"at crash point {points}, before {operation}")
            raise

    fs.on_operation = crash_here
    _compact(fs, directory, log)
    fs.on_operation = None
    assert points > 50
    _check(fs.found_after(policy), written)
