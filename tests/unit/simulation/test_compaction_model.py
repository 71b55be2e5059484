"""Compaction against a plain dict: every key keeps its last committed value, at its offset, whatever is done to a log.

The model is the list of everything ever appended, in transactions and outside of them. Rounds have maps of any size, so
they may end amid a segment; a crash may come before any operation of a round, and appends while it is under way. After
each step the log is verified.
"""

import random
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
from tests.unit.broker.storage.log.transactions import Batch, Model, due_of, end_transaction, read_committed
from tests.unit.broker.storage.steps import save_state

_DELETE_RETENTION_MS = 5000
_POLICIES = st.one_of(
    st.just(forgetful.PROCESS_KILL), st.just(forgetful.POWER_LOSS), st.integers(0, 2**32).map(forgetful.RANDOM)
)
_PRODUCERS = st.integers(1, 3)

Written = tuple[bytes, bytes | None]
"""Key and value."""


def _offsets(damage: DamagedRange) -> range:
    return range(damage.start_offset, damage.end_offset)


def _broker_config() -> BrokerConfig:
    return load_config(None, "", {}, ["log.dir=/data"])[0]


class CompactionModel(RuleBasedStateMachine):
    """``written``: offset -> record, dropped ones included; ``batches`` has the transactions that they belong to."""

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
        self.batches = Model()
        self.start = self.end = 0
        self.checkpoint: int | None = None  # of the cleaner, on the disk
        self.counter = 0
        self.torn: set[int] = set()  # offsets; where their bytes lie changes with a compaction

    @property
    def fs(self) -> forgetful.ForgetfulFileSystem:
        assert isinstance(self.disk.fs, forgetful.ForgetfulFileSystem)
        return self.disk.fs

    @rule(
        keys=st.lists(st.integers(0, 5), min_size=1, max_size=3),
        tombstones=st.lists(st.booleans(), min_size=3),
        producer_id=st.just(-1) | _PRODUCERS,
    )
    def append(self, keys: list[int], tombstones: list[bool], producer_id: int) -> None:
        log, now = self.disk.log, self.disk.clock.now
        records: list[Written] = []
        for key, is_tombstone in zip(keys, tombstones, strict=False):
            self.counter += 1
            records.append((b"key %d" % key, None if is_tombstone else b"%d" % self.counter))
        epoch, sequence = -1, -1
        if producer_id > 0:
            epoch, sequence = due_of(log, producer_id)
            log.producers.expect(producer_id, epoch, begins_at_zero=True)
        encoded = encode_batch(
            [(now, key, value, ()) for key, value in records],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer_id > 0,
        )
        assert self.disk.append_batch(encoded).base_offset == self.end
        self.written |= {self.end + number: record for number, record in enumerate(records)}
        self._note(Batch(self.end, len(records), producer_id))

    @rule(producer_id=_PRODUCERS, marker=st.sampled_from(["COMMIT", "ABORT"]))
    def end_transaction(self, producer_id: int, marker: str) -> None:
        self._note(end_transaction(self.disk.log, producer_id, marker, version=2))

    def _note(self, batch: Batch) -> None:
        assert batch.offset == self.end
        self.batches.batches.append(batch)
        self.end = batch.next_offset

    @rule()
    def roll(self) -> None:
        self.disk.log.roller.roll(self.end, RollReason.IDLE)

    @rule(milliseconds=st.integers(0, 2 * _DELETE_RETENTION_MS))
    def time_passes(self, milliseconds: int) -> None:
        self.disk.clock.now += milliseconds

    @rule()
    def flush(self) -> None:
        self.disk.log.flusher.flush()
        assert self.disk.log.durable_end_offset == self.end

    @rule(map_bytes=st.sampled_from([1, 400, 1 << 20]), is_busy=st.booleans())
    def compact(self, map_bytes: int, is_busy: bool) -> None:
        self._round(map_bytes, is_busy=is_busy)

    @rule(operations=st.integers(0, 60), policy=_POLICIES, map_bytes=st.sampled_from([400, 1 << 20]))
    def crash_while_compacting(self, operations: int, policy: forgetful.CrashPolicy, map_bytes: int) -> None:
        self.fs.crash_after(self.fs.operations[-1].number + operations if self.fs.operations else operations)
        with suppress(forgetful.SimulatedCrash):
            self._round(map_bytes)
        self.crash(policy)

    @rule()
    def stop_and_start(self) -> None:
        self.disk.reopen(log_start=self.start, first_dirty_offset=self.checkpoint)

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

    def _round(self, map_bytes: int, *, is_busy: bool = False) -> None:
        """The steps of the task in their order; if it is busy, others append while it is under way."""
        fs, log = self.fs, self.disk.log
        cleanable = log.cleaning.find_cleanable()
        if not cleanable.is_worth_it(self.config):
            return
        job = replace(log.cleaning.plan_cleaning(cleanable, self.broker_config), map_bytes=map_bytes)
        before = {segment.base_offset: segment.size for segment in log.segments}
        result = clean(fs, job, Throttle(None, time.monotonic, time.sleep))
        assert result.first_dirty > job.first_dirty or cleanable.is_overdue, "a round gets somewhere"
        assert sum(group.bytes_before for group in result.groups) <= sum(before.values())
        if is_busy:
            self.append([0, 1], [False, True, False], 1)
            self.append([0], [False] * 3, -1)
            self.end_transaction(1, "ABORT")
        if log.durable_end_offset < cleanable.until_offset:
            log.flusher.flush()
        log.cleaning.note_compacted(result.first_dirty)
        save_state(log)
        install_cleaned(fs, log, result)
        log.cleaning.finish_cleaning(result)
        save_state(log)
        self.checkpoint = result.first_dirty

    @rule(policy=_POLICIES)
    def crash(self, policy: forgetful.CrashPolicy) -> None:
        """What was synced, so all that was compacted, is there; of the rest anything may be."""
        promised = self.disk.log.durable_end_offset
        self.disk.fs = self.fs.crash(policy)
        log = self.disk._open(clean=False, log_start=self.start, first_dirty_offset=self.checkpoint)
        assert log.log_end_offset >= promised
        torn = [damage for damage in log.state.damaged if damage.reason == "damaged"]
        assert all(damage.start_offset >= promised or self._is_torn(damage) for damage in torn)
        # Unsynced bytes that the crash tore, with a whole batch after them.
        self.torn = {offset for damage in torn for offset in _offsets(damage)}
        self.start, self.end = log.log_start_offset, log.log_end_offset
        sure = max(promised, self.start)
        found = {record.offset for record in read_around(log)}
        self.written = {offset: record for offset, record in self.written.items() if offset < sure or offset in found}
        batches = [each for each in self.batches.batches if each.next_offset <= sure or each.next_offset - 1 in found]
        self.batches.batches = batches
        if log.producers._open != self.batches.transactions()[0]:  # what told of those below the log start is lost
            first = max(log.segments[0].base_offset, self.start)
            self.batches.batches = [each for each in batches if each.offset >= first]

    def _is_torn(self, damage: DamagedRange) -> bool:
        return self.torn.issuperset(_offsets(damage))

    @invariant()
    def every_key_has_its_last_committed_value(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.last_stable_offset == self.batches.last_stable_offset(self.start, self.end)
        committed = {o: self.written[o] for o in self.batches.committed_offsets(self.start, self.end)}
        if log.state.damaged:
            records = [record for record in read_around(log) if record.offset in committed]
        else:
            bytes_max = random.Random(self.end).choice((1, 500, 1 << 20))
            records = [record for record, _ in read_committed(log, bytes_max)]
        found = {record.offset: (record.key, record.value) for record in records}
        assert found.items() <= committed.items(), "nothing is invented, no offset changes"
        latest = {key: offset for offset, (key, _) in committed.items()}
        newest = {key: offset for offset, (key, _) in found.items()}
        for key, offset in latest.items():
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
TestCompactionModel.settings = settings(max_examples=examples(250), stateful_step_count=40)
