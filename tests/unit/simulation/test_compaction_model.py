"""Compaction against a plain dict: whatever is done to the log, every key keeps its last value, at its own offset.

The model is the list of everything ever appended. Rounds have maps of any size, so they may end amid a segment; a
crash may come before any operation of a round. After each step the log is verified.
"""

import time
from contextlib import suppress
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seglog_broker.config import BrokerConfig, TopicConfig, load_config
from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing import forgetful
from seglog_protocol import segment_files
from seglog_protocol.batch_builder import encode_batch
from tests.logs import DIRECTORY, LogOnDisk, install_cleaned, read_around, verify
from tests.support import examples
from tests.unit.broker.storage.steps import save_state

_DELETE_RETENTION_MS = 5000
_POLICIES = st.one_of(
    st.just(forgetful.PROCESS_KILL), st.just(forgetful.POWER_LOSS), st.integers(0, 2**32).map(forgetful.RANDOM)
)

Written = tuple[bytes, bytes | None]
"""Key and value."""


def _offsets(damage: DamagedRange) -> range:
    return range(damage.start_offset, damage.end_offset)


def _broker_config() -> BrokerConfig:
    return load_config(None, "", {}, ["log.dir=/data"])[0]


class CompactionModel(RuleBasedStateMachine):
    """``written``: offset -> record, dropped ones included."""

    @initialize(segment_bytes=st.sampled_from([300, 1000]), interval=st.sampled_from([0, 200]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = TopicConfig(
            cleanup_policy=("compact",),
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=_DELETE_RETENTION_MS,
        )
        self.broker_config = _broker_config()
        self.disk = LogOnDisk(self.config)
        self.written: dict[int, Written] = {}
        self.start = self.end = self.durable = 0
        self.checkpoint: int | None = None  # of the cleaner, on the disk
        self.counter = 0
        self.torn: set[int] = set()  # offsets; where their bytes lie changes with a compaction

    @property
    def fs(self) -> forgetful.ForgetfulFileSystem:
        assert isinstance(self.disk.fs, forgetful.ForgetfulFileSystem)
        return self.disk.fs

    @rule(keys=st.lists(st.integers(0, 5), min_size=1, max_size=3), tombstones=st.lists(st.booleans(), min_size=3))
    def append(self, keys: list[int], tombstones: list[bool]) -> None:
        records: list[Written] = []
        for key, is_tombstone in zip(keys, tombstones, strict=False):
            self.counter += 1
            records.append((b"key %d" % key, None if is_tombstone else b"%d" % self.counter))
        now = self.disk.clock.now
        appended = self.disk.append_batch(encode_batch([(now, key, value, ()) for key, value in records]))
        assert appended.base_offset == self.end
        self.written |= {self.end + number: record for number, record in enumerate(records)}
        self.end += len(records)

    @rule()
    def roll(self) -> None:
        self.disk.log.roller.roll(self.end, RollReason.IDLE)

    @rule(milliseconds=st.integers(0, 2 * _DELETE_RETENTION_MS))
    def time_passes(self, milliseconds: int) -> None:
        self.disk.clock.now += milliseconds

    @rule()
    def flush(self) -> None:
        self.disk.log.flusher.flush()
        self.durable = self.end

    @rule(map_bytes=st.sampled_from([1, 400, 1 << 20]))
    def compact(self, map_bytes: int) -> None:
        self._round(map_bytes)

    @rule(operations=st.integers(0, 60), policy=_POLICIES, map_bytes=st.sampled_from([400, 1 << 20]))
    def crash_while_compacting(self, operations: int, policy: forgetful.CrashPolicy, map_bytes: int) -> None:
        until = self.disk.log.cleaning.find_cleanable().until_offset
        self.fs.crash_after(self.fs.operations[-1].number + operations if self.fs.operations else operations)
        with suppress(forgetful.SimulatedCrash):
            self._round(map_bytes)
        self._crash(policy)
        assert self.end >= min(self.durable, until)

    @rule(policy=_POLICIES)
    def crash(self, policy: forgetful.CrashPolicy) -> None:
        self._crash(policy)

    @rule()
    def stop_and_start(self) -> None:
        self.disk.reopen(log_start=self.start, first_dirty_offset=self.checkpoint)
        self.durable = self.end

    @precondition(lambda self: self.end > self.start)
    @rule(share=st.floats(0, 1))
    def delete_records_before(self, share: float) -> None:
        self.start = self.disk.log.truncate_before(self.start + int((self.end - self.start) * share))

    @precondition(lambda self: len(self.disk.log.segments) > 1)
    @rule()
    def expire_the_oldest(self) -> None:
        log = self.disk.log
        doomed = log.truncation.drop_oldest(1)
        save_state(log)
        self.start = log.log_start_offset
        doomed.set_aside()
        self.fs.sync_directory(DIRECTORY)
        doomed.remove()

    def _round(self, map_bytes: int) -> None:
        """The steps of the task in their order."""
        fs, log = self.fs, self.disk.log
        cleanable = log.cleaning.find_cleanable()
        if not cleanable.is_worth_it(self.config):
            return
        job = replace(log.cleaning.plan_cleaning(cleanable, self.broker_config), map_bytes=map_bytes)
        before = {segment.base_offset: segment.size for segment in log.segments}
        result = clean(fs, job, Throttle(None, time.monotonic, time.sleep))
        assert result.first_dirty > job.first_dirty or cleanable.is_overdue, "a round gets somewhere"
        assert sum(group.bytes_before for group in result.groups) <= sum(before.values())
        if log.durable_end_offset < cleanable.until_offset:
            log.flusher.flush()
            self.durable = self.end
        log.cleaning.note_compacted(result.first_dirty)
        save_state(log)
        install_cleaned(fs, log, result)
        log.cleaning.finish_cleaning(result)
        save_state(log)
        self.checkpoint = result.first_dirty

    def _crash(self, policy: forgetful.CrashPolicy) -> None:
        promised = self.durable
        self.disk.fs = self.fs.crash(policy)
        self.disk._open(clean=False, log_start=self.start, first_dirty_offset=self.checkpoint)
        log = self.disk.log
        assert log.log_end_offset >= promised
        torn = [damage for damage in log.state.damaged if damage.reason == "damaged"]
        assert all(damage.start_offset >= promised or self._is_torn(damage) for damage in torn)
        # Unsynced bytes that the crash tore, with a whole batch after them.
        self.torn = {offset for damage in torn for offset in _offsets(damage)}
        self.end = self.durable = log.log_end_offset
        self.start = log.log_start_offset
        found = {record.offset for record in read_around(log)}
        for offset in [offset for offset in self.written if offset >= promised and offset not in found]:
            if offset >= self.end or not self._is_superseded(offset, found):
                del self.written[offset]  # it was never promised

    def _is_torn(self, damage: DamagedRange) -> bool:
        return self.torn.issuperset(_offsets(damage))

    def _is_superseded(self, offset: int, found: set[int]) -> bool:
        key, _ = self.written[offset]
        return any(self.written[later][0] == key for later in found if later > offset)

    @invariant()
    def every_key_has_its_last_value(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        found = {record.offset: (record.key, record.value) for record in read_around(log)}
        assert found.items() <= self.written.items(), "nothing is invented, no offset changes"
        latest = {key: offset for offset, (key, _) in sorted(self.written.items()) if offset < self.end}
        newest = {key: offset for offset, (key, _) in sorted(found.items())}
        for key, offset in latest.items():
            if offset < self.start:
                continue
            if offset not in found:
                assert self.written[offset][1] is None, "only a tombstone may be gone"
                assert offset < log.state.compacted_before
                assert key not in newest, "what it deleted does not come back"
        for damage in log.state.damaged:  # a power cut may take a segment's bytes and leave the name of the next
            assert damage.reason == "missing" or self._is_torn(damage)

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "disk"):
            verify(self.fs, self.disk.log)
            leftover = (segment_files.CLEANED_SUFFIX, segment_files.SWAP_SUFFIX, segment_files.DELETED_SUFFIX)
            assert [name for name in self.fs.list_directory(DIRECTORY) if name.endswith(leftover)] == []

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.log.release()
            assert self.fs.open_files == []


TestCompactionModel = CompactionModel.TestCase
TestCompactionModel.settings = settings(max_examples=examples(150), stateful_step_count=40)
