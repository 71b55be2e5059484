"""The partition log compared with a plain list after any operations on both. After each step the log is verified.

Some of its records belong to transactions, which are committed, aborted, or open for ever.
"""

import math
import random
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.recovery import SET_ASIDE_SUFFIX
from seglog_broker.storage.log.truncation import DeletionRule
from seglog_broker.storage.segment.segment_log import TailCache
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, CrashPolicy
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.segment_files import SNAPSHOT_SUFFIX, segment_file_name
from seglog_protocol.transaction_files import EndMarker, encode_end_marker
from tests.logs import DIRECTORY, LogOnDisk, batch, index_bytes, read_around, verify
from tests.soundness import assert_log_sound
from tests.support import examples
from tests.unit.broker.storage.log.transactions import (
    Batch,
    Model,
    append_in_transaction,
    end_transaction,
    read_committed,
)
from tests.unit.broker.storage.steps import save_state

_START_MS = 1_700_000_000_000


class LogModel(RuleBasedStateMachine):
    """``values`` is the model: (offset, timestamp, value) in order, contiguous except where bytes were lost.

    ``transactions`` has all batches and markers, those before the log start, too.
    """

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 5000]),
        interval=st.sampled_from([0, 100, 400]),
        index_bytes=st.sampled_from([24, 60, 4096]),
        handles=st.sampled_from([1, 512]),
        retention_ms=st.sampled_from([0, 4000, -1]),
        retention_bytes=st.sampled_from([-1, 600, 3000]),
    )
    def begin(
        self,
        segment_bytes: int,
        interval: int,
        index_bytes: int,
        handles: int,
        retention_ms: int,
        retention_bytes: int,
    ) -> None:
        self.config = TopicConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=5000,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )
        self.disk = LogOnDisk(self.config, handles_max=handles)
        self.doomed: list[DeletedSegments] = []  # out of the log, and not all of it off the disk
        self.disk.set_time(_START_MS)
        self.values: list[tuple[int, int, bytes]] = []
        self.end = 0
        self.durable = 0
        self.start = 0
        self.epoch = 0
        self.counter = 0
        self.transactions = Model()

    @rule(
        batches=st.integers(1, 8),
        count=st.integers(1, 5),
        timestamp=st.one_of(st.just(-1), st.integers(0, 20_000)),
        size=st.integers(0, 40),
    )
    def append(self, batches: int, count: int, timestamp: int, size: int) -> None:
        for number in range(batches):
            self._append(count, timestamp if timestamp < 0 else timestamp + 100 * number, size)

    def _append(self, count: int, timestamp: int, size: int) -> None:
        stamp = timestamp if timestamp < 0 else _START_MS + timestamp
        values = [f"{self.counter}-{n}-".encode() + b"x" * size for n in range(count)]
        if len(batch(*values)) > self.config.segment_bytes:
            return
        self.counter += 1
        appended = self.disk.append(*values, timestamp=stamp)
        assert appended.base_offset == self.end
        assert appended.last_offset == self.end + count - 1
        self._note(Batch(self.end, count), stamp, values)

    def _note(self, written: Batch, timestamp: int, values: list[bytes]) -> None:
        assert written.offset == self.end
        self.transactions.batches.append(written)
        self.values += [(self.end + n, timestamp, value) for n, value in enumerate(values)]
        self.end = written.next_offset

    @rule(producer_id=st.integers(1, 3), count=st.integers(1, 4))
    def append_in_transaction(self, producer_id: int, count: int) -> None:
        written = append_in_transaction(self.disk.log, producer_id, count)
        self._note(written, 1_000, [b"v"] * count)

    @rule(producer_id=st.integers(1, 3), marker=st.sampled_from(["COMMIT", "ABORT"]), version=st.sampled_from([1, 2]))
    def end_transaction(self, producer_id: int, marker: Literal["COMMIT", "ABORT"], version: int) -> None:
        written = end_transaction(self.disk.log, producer_id, marker, version=version)
        _, value = encode_end_marker(EndMarker(marker, 0))
        self._note(written, self.disk.clock.now, [value])

    @rule(milliseconds=st.integers(0, 10_000))
    def time_passes(self, milliseconds: int) -> None:
        self.disk.set_time(self.disk.clock.now + milliseconds)

    @rule()
    def flush(self) -> None:
        self.disk.log.flusher.flush()
        self.durable = self.end

    @rule()
    def stop_and_start(self) -> None:
        before = index_bytes(self.disk.log)
        self.disk.log.close()
        assert_log_sound(self.disk.fs, DIRECTORY, self.config, log_start=self.start, log_end=self.end)
        self.disk._open(clean=True, log_start=self.start)
        self.doomed = []  # those that still bear their names are segments below the log start now
        self.durable = self.end
        assert self.disk.log.leader_epoch == self.epoch, "a clean start keeps the epoch"
        after = index_bytes(self.disk.log)[-len(before) :]
        assert after == before, "the indexes do not remember that there was a stop"

    @rule()
    def lose_every_index(self) -> None:
        before = index_bytes(self.disk.log)
        self.disk.log.close()
        for name in self.disk.fs.list_directory("/topic-0"):
            if name.endswith(("index",)):
                self.disk.fs.unlink(f"/topic-0/{name}")
        self.disk._open(clean=True, log_start=self.start)
        self.doomed = []
        self.durable = self.end
        assert index_bytes(self.disk.log)[-len(before) :] == before

    @rule()
    def kill(self) -> None:
        self._crash(PROCESS_KILL)
        assert self.disk.log.log_end_offset == self.end, "everything written survives the process"

    @rule(seed=st.one_of(st.none(), st.integers(0, 2**32)))
    def power_cut(self, seed: int | None) -> None:
        promised = self.durable
        self._crash(POWER_LOSS if seed is None else RANDOM(seed))
        log = self.disk.log
        assert promised <= log.log_end_offset <= self.end
        assert log.durable_end_offset == log.log_end_offset
        found = {record.offset for record in read_around(log)}
        kept = [value for value in self.values if value[0] < promised or value[0] in found]
        assert {offset for offset, _, _ in kept} == found
        self.values, self.end = kept, log.log_end_offset

    def _forget_transactions(self) -> None:
        """Batches of the segments that there are: those below the log start, too, tell where a transaction began.

        Of what was before these segments a snapshot tells where they begin. There may be none: a power cut takes it,
        and a start that reads many segments writes it for the last two only.
        """
        first = self.disk.log.segments[0].base_offset
        there = {header.base_offset for segment in self.disk.log.segments for _, header in segment.log.batches()}
        if self.disk.fs.exists(f"{DIRECTORY}/{segment_file_name(first, SNAPSHOT_SUFFIX)}"):
            there.update(each.offset for each in self.transactions.batches if each.next_offset <= first)
        self.transactions.batches = [each for each in self.transactions.batches if each.offset in there]

    def _crash(self, policy: CrashPolicy) -> None:
        self.disk.crash(policy, log_start=self.start)
        self.doomed = []
        self.durable = self.disk.log.durable_end_offset
        self.epoch += 1
        assert self.disk.log.leader_epoch == self.epoch, "every unclean start takes a new epoch"
        self._forget_transactions()

    @precondition(lambda self: self.end > self.start)
    @rule(share=st.floats(0, 1))
    def delete_records_before(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        assert self.disk.log.truncate_before(offset) == offset
        self.start = offset
        self.values = [value for value in self.values if value[0] >= offset]

    @rule()
    def close_an_idle_segment(self) -> None:
        log = self.disk.log
        due, count = log.roller.idle_roll_ms, len(log.segments)
        rolled = log.roller.roll_if_idle()
        assert rolled == (len(log.segments) > count)
        if rolled:
            assert due is not None
            assert due < self.disk.clock.now
            assert log.active.size == 0
        else:
            assert log.active.size == 0 or (log.roller.idle_roll_ms or 0) >= self.disk.clock.now

    @rule(milliseconds=st.sampled_from([0, 5000]), share=st.sampled_from([1, 1, 0.5]))
    def expire(self, milliseconds: int, share: float) -> None:
        self.disk.set_time(self.disk.clock.now + milliseconds)
        log = self.disk.log
        verdicts = list(log.retention.judge_segments())
        going = [segment for segment, verdict in verdicts if verdict.rule is not None]
        going = going[: math.ceil(len(going) * share)]
        if not going:
            return
        by_time = [segment for segment, verdict in verdicts if verdict.rule is DeletionRule.TIME]
        if self.config.retention_bytes >= 0 and not by_time:
            below = sum(segment.size for segment, verdict in verdicts if verdict.rule is DeletionRule.LOG_START)
            assert log.size - below < self.config.retention_bytes or (
                log.size - sum(segment.size for segment in going) >= self.config.retention_bytes
            )
        for segment in by_time:
            assert segment.largest_timestamp < self.disk.clock.now - self.config.retention_ms or (
                not -1 < segment.largest_timestamp <= self.disk.clock.now
            )
        self.doomed.append(log.truncation.drop_oldest(len(going)))
        self.save_state()  # as the task does, before it writes the checkpoint
        self.start = max(self.start, log.segments[0].base_offset)
        self.values = [value for value in self.values if value[0] >= self.start]
        assert next(log.retention.judge_segments())[1].kept is not None or share < 1, "a second look finds nothing"

    @rule(is_over=st.booleans())
    def set_aside(self, is_over: bool) -> None:
        """Rename the files of deleted segments, and remove them if the delay is over."""
        for doomed in self.doomed:
            doomed.set_aside()
        assert self.disk.log.truncation.first_base_on_disk == self.disk.log.segments[0].base_offset
        if not is_over:
            return
        for doomed in self.doomed:
            doomed.remove()
        self.doomed = []
        served = {segment.base_offset for segment in self.disk.log.segments}
        found = [name for name in self.disk.fs.list_directory("/topic-0") if name[0] == "0" and "snapshot" not in name]
        assert {int(name[:20]) for name in found if SET_ASIDE_SUFFIX not in name} == served

    @rule()
    def save_state(self) -> None:
        save_state(self.disk.log)

    @invariant()
    def reads_what_the_model_holds(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        expected = [value for value in self.values if value[0] >= self.start]
        assert [(record.offset, record.timestamp, record.value) for record in read_around(log)] == expected
        if expected:
            at = random.Random(self.counter).randrange(len(expected))
            wanted = expected[at][1]
            if wanted >= 0:
                first = next(value for value in expected if value[1] >= wanted)
                found = log.find_timestamp(wanted)
                assert found is not None
                assert (found.timestamp, found.offset) == (first[1], first[0])

    @invariant()
    def reads_what_was_committed(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert log.last_stable_offset == self.transactions.last_stable_offset(self.start, self.end)
        if not log.state.damaged:
            found = [record.offset for record, _ in read_committed(log, 1 << 20)]
            assert found == self.transactions.committed_offsets(self.start, self.end)

    @rule(share=st.floats(0, 1), bytes_max=st.integers(0, 500), min_one=st.booleans())
    def read_with_what_is_remembered_and_without(self, share: float, bytes_max: int, min_one: bool) -> None:
        log = self.disk.log
        offset = self.start + int((self.end - self.start) * share)
        tail = log.active.tail
        found: list[tuple[int, int, int] | str | None] = []
        for remembered in (tail, TailCache()):
            log.active.tail = remembered
            try:
                piece = log.read(offset, bytes_max, min_one=min_one)
            except CorruptRecordError as error:
                found.append(error.message)
                continue
            found.append(None if piece is None else (piece.start_offset, piece.position, piece.size))
            if piece is not None:
                piece.release()
        log.active.tail = tail
        near, plain = found
        if isinstance(near, tuple) and isinstance(
            plain, tuple
        ):  # an index leads to a boundary, the tail to the last one
            assert near[:2] == plain[:2]
            assert near[2] == plain[2] or plain[2] < near[2] <= bytes_max
        else:
            assert near == plain

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "disk"):
            verify(self.disk.fs, self.disk.log)

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.log.release()
            assert self.disk.double.open_files == []


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=examples(200), stateful_step_count=40)
