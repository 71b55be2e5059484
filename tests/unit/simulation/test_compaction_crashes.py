"""A crash at every single file operation of compaction: cleaning, promoting, installing, settling, removing.

Everything is durable before compaction begins. So after any crash every key must still have its last value, at the same
offset; no record may appear that was never written; no stray file stays; and the log can be compacted again, with the
same result as without a crash.
"""

import random
import time

import pytest

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.storage.compaction.cleaned_segment import SegmentSwap, discard_cleaned
from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.testing import forgetful
from seglog_protocol.batch_builder import encode_batch
from tests.logs import ManualClock, append_one, flip_bit, read_around, verify
from tests.soundness import assert_directory_sound
from tests.support import each_case
from tests.unit.broker.storage.steps import create_topic, save_state
from tests.unit.simulation.crashes import crash_points

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


def _open(fs: forgetful.ForgetfulFileSystem, now: int = _NOW) -> tuple[LogDirectory, PartitionLog]:
    directory = open_log_directory(fs, ManualClock(now), _config(), "/data")
    assert directory.report.offline == {}
    assert directory.report.problems == []
    if "t" not in directory.registry.topics:
        create_topic(directory, "t", 1, dict(_TOPIC_CONFIG))
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
        base = append_one(log, encode_batch(records)).base_offset
        written |= {base + number: (key, value) for number, (_, key, value, _) in enumerate(records)}
    log.flusher.flush()


def _compact(fs: forgetful.ForgetfulFileSystem, directory: LogDirectory, log: PartitionLog) -> None:
    """The steps of the compaction task in their order, without the loop."""
    result = clean(
        fs,
        log.cleaning.plan_cleaning(log.cleaning.find_cleanable(), _config()),
        Throttle(None, time.monotonic, time.sleep),
    )
    log.cleaning.note_compacted(result.first_dirty)
    save_state(log)
    doomed = []
    for group in result.groups:
        if not group.unchanged:
            swap = SegmentSwap(fs, log.directory, group.sources)
            swap.promote()
            doomed.append(log.cleaning.install_cleaned(swap, group.damaged))
            swap.settle()
    discard_cleaned(fs, log.directory)
    log.cleaning.finish_cleaning(result)
    for path, content in directory.partitions.encoded_checkpoints():
        write_file_atomically(fs, path, content)
    for segments in doomed:
        segments.remove()


def _latest(written: Written) -> Written:
    last = {key: offset for offset, (key, _) in sorted(written.items())}
    return {offset: written[offset] for offset in last.values()}


def _check(found: forgetful.ForgetfulFileSystem, written: Written) -> None:
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
    assert names <= {"log", "index", "timeindex", "checksum", "snapshot"}, "a stray file"
    _compact(found, directory, log)
    verify(found, log)
    again = {record.offset: (record.key, record.value) for record in read_around(log)}
    behind = {o: r for o, r in written.items() if o >= log.active.base_offset}
    kept = _latest({o: r for o, r in written.items() if o not in behind})
    assert {o: r for o, r in again.items() if o not in behind} == {o: kept[o] for o in again if o not in behind}
    assert directory.close() == []
    assert_directory_sound(found, "/data", _config())
    again_directory, log = _open(found)
    assert again_directory.report.clean
    verify(found, log)
    assert again_directory.close() == []
    assert found.open_files == []


@pytest.mark.parametrize(
    ("policy", "every"),
    [
        pytest.param(forgetful.POWER_LOSS, 6, id="power loss, every sixth"),
        pytest.param(forgetful.POWER_LOSS, 1, id="power loss", marks=pytest.mark.soak),
        pytest.param(forgetful.PROCESS_KILL, 1, id="process kill", marks=pytest.mark.soak),
        *(pytest.param(forgetful.RANDOM(seed), 1, id=f"random {seed}", marks=pytest.mark.soak) for seed in range(4)),
    ],
)
def test_a_crash_before_any_operation_of_compaction_loses_no_key(policy: forgetful.CrashPolicy, every: int) -> None:
    fs = forgetful.ForgetfulFileSystem()
    directory, log = _open(fs)
    written: Written = {}
    _fill(log, written, 1, 36)
    _compact(fs, directory, log)  # so that there is a clean part too
    _fill(log, written, 2, 36)
    with crash_points(fs, lambda: _check(fs.found_after(policy), written), every) as points:
        _compact(fs, directory, log)
    assert points.visited > 50
    _check(fs.found_after(policy), written)


def _swapped(lost: int | None) -> tuple[forgetful.ForgetfulFileSystem, Written]:
    """A disk after the renames of a swap; ``lost`` is the source whose new name was lost in a power cut."""
    fs = forgetful.ForgetfulFileSystem()
    _, log = _open(fs)
    written: Written = {}
    for number in range(12):
        record = (b"key %d" % (number if number % 3 else 0), b"%d" % number)
        written[append_one(log, encode_batch([(_NOW, *record, ())])).base_offset] = record
        if number % 3 == 2:
            log.roller.roll(log.log_end_offset, RollReason.SIZE)
    log.flusher.flush()
    job = log.cleaning.plan_cleaning(log.cleaning.find_cleanable(), _config())
    [group] = clean(fs, job, Throttle(None, time.monotonic, time.sleep)).groups
    assert group.sources == (0, 3, 6, 9)
    log.cleaning.note_compacted(12)
    save_state(log)
    swap = SegmentSwap(fs, log.directory, group.sources)
    swap.promote()
    log.cleaning.install_cleaned(swap, group.damaged)
    found = fs.found_after(forgetful.PROCESS_KILL)
    for suffix in (".log", ".index", ".timeindex") if lost is not None else ():
        path = f"{log.directory}/{lost:020}{suffix}"
        found.rename(f"{path}.deleted", path)
    return found, written


@each_case("lost", [None, 3, 6, 9])
def test_a_compacted_source_does_not_come_back_after_a_power_cut(lost: int | None) -> None:
    """A source that kept its name in a power cut is not opened beside its replacement."""
    found, written = _swapped(lost)
    crashed_again = found.found_after(forgetful.PROCESS_KILL)
    _check(found, written)
    _check(crashed_again, written)


def test_a_start_completes_a_swap_whose_new_segment_has_damaged_bytes_in_it() -> None:
    fs = forgetful.ForgetfulFileSystem()
    _, log = _open(fs)
    for number in range(12):
        append_one(log, encode_batch([(_NOW, b"key %d" % number, b"v", ())]))
        if number % 3 == 2:
            log.roller.roll(log.log_end_offset, RollReason.SIZE)
    log.flusher.flush()
    flip_bit(fs, log.segments[0].log_path, log.segments[0].size - 1)
    job = log.cleaning.plan_cleaning(log.cleaning.find_cleanable(), _config())
    [group] = clean(fs, job, Throttle(None, time.monotonic, time.sleep)).groups
    assert [(d.start_offset, d.end_offset) for d in group.damaged] == [(2, 3)]
    log.cleaning.note_compacted(12)
    log.state.save(fs, log.directory)
    SegmentSwap(fs, log.directory, group.sources).promote()
    found = fs.found_after(forgetful.PROCESS_KILL)
    _, log = _open(found)
    assert [segment.base_offset for segment in log.segments] == [0, 12]
    assert [record.offset for record in read_around(log)] == [offset for offset in range(12) if offset != 2]
    assert [(d.start_offset, d.end_offset) for d in log.state.damaged] == [(2, 3)]
    verify(found, log)
