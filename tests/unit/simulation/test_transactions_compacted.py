"""Compaction of a log with transactions, which go on meanwhile, against a plain list of what was written.

At read_committed every key keeps its last committed value, at its own offset; nothing of an aborted or open transaction
is read, before and after rounds of compaction, starts and crashes; and the last stable offset stays right.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig, load_config
from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, CrashPolicy
from seglog_protocol.batch_builder import encode_batch
from tests.logs import LogOnDisk, append_one, install_cleaned, verify
from tests.support import examples
from tests.unit.broker.storage.log.transactions import due_of, read_committed

PRODUCERS: Final = 3
KEYS: Final = 5
DELETE_RETENTION_MS: Final = 5_000

Written = tuple[int, bytes, bytes | None]
"""Offset, key and value."""


@dataclass
class Transaction:
    producer_id: int
    records: list[Written] = field(default_factory=list)
    marker: int | None = None
    is_committed: bool = False


class Compacted:
    """The log, its transactions in the order of their first batches, and the records outside of any."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        config = TopicConfig(
            cleanup_policy=("compact",),
            segment_bytes=600,
            index_interval_bytes=100,
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        self.disk = LogOnDisk(config)
        self.transactions: list[Transaction] = []
        self.plain: list[Written] = []
        self.checkpoint: int | None = None
        self.rounds = 0

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _batch(self, producer_id: int) -> list[Written]:
        log, chance = self.disk.log, self.dice
        end = log.log_end_offset
        records = [
            (offset, b"key %d" % chance.randrange(KEYS), None if chance.random() < 0.2 else b"%d" % offset)
            for offset in range(end, end + chance.randrange(1, 4))
        ]
        epoch, sequence = due_of(log, producer_id) if producer_id >= 0 else (-1, -1)
        encoded = encode_batch(
            [(self.disk.clock.now, key, value, ()) for _, key, value in records],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
        if producer_id >= 0:
            log.producers.expect(producer_id, epoch, begins_at_zero=True)
        append_one(log, encoded)
        return records

    def append(self) -> None:
        self.plain += self._batch(-1)

    def append_in_transaction(self) -> None:
        producer_id = self.dice.randrange(PRODUCERS)
        records = self._batch(producer_id)
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.marker is None:
                transaction.records += records
                return
        self.transactions.append(Transaction(producer_id, records))

    def end_transaction(self) -> None:
        producer_id, is_committed = self.dice.randrange(PRODUCERS), self.dice.random() < 0.5
        epoch, _ = due_of(self.disk.log, producer_id)
        end = TransactionEnd(producer_id, epoch + 1, 0, is_committed, 2)
        marker = self.disk.log.append_marker(end).base_offset
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.marker is None:
                transaction.marker, transaction.is_committed = marker, is_committed

    def roll(self) -> None:
        if self.disk.log.active.size:
            self.disk.log.roller.roll(self.disk.log.log_end_offset, RollReason.IDLE)

    def time_passes(self) -> None:
        self.disk.clock.now += self.dice.randrange(2 * DELETE_RETENTION_MS)

    def flush(self) -> None:
        self.disk.log.flusher.flush_deep()

    def compact(self) -> None:
        fs, log = self.disk.fs, self.disk.log
        cleanable = log.cleaning.find_cleanable()
        if not cleanable.is_worth_it(self.disk.config):
            return
        self.rounds += 1
        job = log.cleaning.plan_cleaning(cleanable, load_config(None, "", {}, ["log.dir=/data"])[0])
        job = replace(job, map_bytes=self.dice.choice((400, 1 << 20)))
        result = clean(fs, job, Throttle(None, time.monotonic, time.sleep))
        for step in self.dice.choices((self.append, self.append_in_transaction, self.end_transaction), k=3):
            step()  # while the round is under way
        log.flusher.flush()
        log.cleaning.note_compacted(result.first_dirty)
        log.state_file.save()
        install_cleaned(fs, log, result)
        log.cleaning.finish_cleaning(result)
        log.state_file.save()
        self.checkpoint = result.first_dirty

    def stop_and_start(self) -> None:
        self.disk.reopen(first_dirty_offset=self.checkpoint)

    def kill(self) -> None:
        self._crash(PROCESS_KILL)

    def lose_power(self) -> None:
        self._crash(POWER_LOSS)

    def _crash(self, policy: CrashPolicy) -> None:
        durable = self.disk.log.durable_end_offset
        log = self.disk.crash(policy, first_dirty_offset=self.checkpoint)
        end = log.log_end_offset
        assert end >= durable
        self.plain = [record for record in self.plain if record[0] < end]
        for transaction in self.transactions:
            transaction.records = [record for record in transaction.records if record[0] < end]
            if transaction.marker is not None and transaction.marker >= end:
                transaction.marker = None
        self.transactions = [transaction for transaction in self.transactions if transaction.records]

    # --- What must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        log = self.disk.log
        opened = [each.records[0][0] for each in self.transactions if each.marker is None]
        stable = min(opened, default=log.log_end_offset)
        assert log.last_stable_offset == stable
        committed = {offset: (key, value) for offset, key, value in self.plain}
        for transaction in self.transactions:
            if transaction.marker is not None and transaction.is_committed:
                committed |= {offset: (key, value) for offset, key, value in transaction.records}
        committed = {offset: record for offset, record in sorted(committed.items()) if offset < stable}
        for bytes_max in (1, 500, 1 << 20):
            found = {record.offset: (record.key, record.value) for record, _ in read_committed(log, bytes_max)}
            assert found.items() <= committed.items(), "what was never committed, or is not yet"
            newest = {key: offset for offset, (key, _) in found.items()}
            for key, offset in {key: offset for offset, (key, _) in committed.items()}.items():
                if newest.get(key) != offset:
                    assert committed[offset][1] is None, "a key has lost its last committed value"
                    assert key not in newest, "what a tombstone deleted came back"
        verify(self.disk.fs, log)


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_compaction_keeps_the_last_committed_value_of_each_key(seed: int) -> None:
    log = Compacted(seed)
    steps: list[Callable[[], None]] = [
        *[log.append] * 2,
        *[log.append_in_transaction] * 6,
        *[log.end_transaction] * 4,
        *[log.roll] * 3,
        *[log.compact] * 3,
        *(log.time_passes, log.flush, log.stop_and_start, log.kill, log.lose_power),
    ]
    for _ in range(30):
        log.dice.choice(steps)()
        log.check()
