"""What readers of committed records get of a log with transactions, held against a plain model of them."""

import random
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol.segment_files import segment_file_name
from tests.broker.storage.log.transactions import (
    Aborted,
    Batch,
    Model,
    append_in_transaction,
    due_of,
    end_transaction,
    read_committed,
)
from tests.logs import DIRECTORY, LogOnDisk, add_bytes, contents, flip_bit
from tests.support import examples

PRODUCERS: Final = 4


class Transactional:
    """A log that Kafka and seglog write in turns, and the model of it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = LogOnDisk(TopicConfig(segment_bytes=2_000, index_interval_bytes=200))
        self.disk.clock.now = 5_000  # as the records, so that not every marker begins a segment by its age
        self.model = Model()
        self._recovery_point = 0

    def kafka_writes(self, *kinds: str) -> None:
        """Kafka appends batches and is killed; then seglog recovers the log."""
        log = self.disk.log
        end, leader_epoch = log.log_end_offset, log.leader_epoch
        due = {-1: (0, 0)} | {producer_id: due_of(log, producer_id) for producer_id in range(PRODUCERS)}
        log.release()
        for kind in kinds or self.dice.choices(("data", "plain", "ABORT", "COMMIT"), (5, 1, 2, 1), k=6):
            producer_id = -1 if kind == "plain" else self.dice.randrange(PRODUCERS)
            is_marker = kind in {"ABORT", "COMMIT"}
            batch = Batch(end, 1 if is_marker else self.dice.randrange(1, 4), producer_id, kind if is_marker else None)
            add_bytes(
                self.disk.fs,
                self._path(log.active.base_offset),
                batch.encoded(due[producer_id][1], leader_epoch, due[producer_id][0]),
            )
            if not is_marker:
                due[producer_id] = due[producer_id][0], due[producer_id][1] + batch.records
            self.model.batches.append(batch)
            end = batch.next_offset
        self._open_unclean()

    def seglog_appends(self) -> None:
        """A plain batch by the broker, which may roll."""
        appended = self.disk.append(*[b"v" * 30] * self.dice.randrange(1, 4))
        count = self.disk.log.log_end_offset - appended.base_offset
        self.model.batches.append(Batch(appended.base_offset, count))

    def seglog_transaction(self) -> None:
        """Batches of one transaction, which may go on with one that is open already."""
        producer_id = self.dice.randrange(PRODUCERS)
        for _ in range(self.dice.randrange(1, 4)):
            self.model.batches.append(append_in_transaction(self.disk.log, producer_id, self.dice.randrange(1, 4)))

    def seglog_marker(self) -> None:
        """A transaction ends, or none does: a marker that is written again."""
        producer_id, marker = self.dice.randrange(PRODUCERS), self.dice.choice(("ABORT", "ABORT", "COMMIT"))
        version = self.dice.choice((1, 2))
        self.model.batches.append(end_transaction(self.disk.log, producer_id, marker, version=version))

    def roll(self) -> None:
        if self.disk.log.active.size:
            self.disk.log.roller.roll(self.disk.log.log_end_offset, RollReason.SIZE)

    def truncate_to(self) -> None:
        log = self.disk.log
        log.truncation.truncate_to(self.dice.randint(log.log_start_offset, log.log_end_offset))
        for producer_id in range(PRODUCERS):
            log.producers.expect_no_more(producer_id)
        self.model.cut_to(log.log_end_offset)
        self._recovery_point = min(self._recovery_point, log.log_end_offset)

    def delete_records(self) -> None:
        log = self.disk.log
        log.truncate_before(self.dice.randint(log.log_start_offset, log.log_end_offset))

    def expire(self) -> None:
        """Retention takes the oldest segments."""
        log = self.disk.log
        if len(log.segments) > 1:
            deleted = log.truncation.drop_oldest(self.dice.randrange(1, len(log.segments)))
            log.state_file.save()
            deleted.set_aside()
            deleted.remove()

    def restart(self) -> None:
        start = self.disk.log.log_start_offset
        self.disk.reopen(log_start=start)

    def kill(self) -> None:
        self._crash(PROCESS_KILL)

    def lose_power(self) -> None:
        """The names of segments may be on the disk, and the last batches of those before are not."""
        self._crash(POWER_LOSS)
        self.model.cut_to(self.disk.log.log_end_offset)
        lost = [(damage.start_offset, damage.end_offset) for damage in self.disk.log.state.damaged]
        self.model.batches = [
            batch for batch in self.model.batches if not any(start <= batch.offset < end for start, end in lost)
        ]

    def flush(self) -> None:
        """Everything, as for a checkpoint at the log end."""
        self.disk.log.flusher.flush_deep()
        self._recovery_point = self.disk.log.log_end_offset

    def lose_indexes(self) -> None:
        """A stopped log loses the index files of a segment, the transaction index among them."""
        start = self.disk.log.log_start_offset
        self.disk.log.close()
        base = self.dice.choice(self.disk.log.segments.bases)
        for suffix in (".index", ".timeindex", ".txnindex"):
            path = self._path(base, suffix)
            if self.disk.fs.exists(path):
                self.disk.fs.unlink(path)
        self.disk._open(clean=True, log_start=start)

    def check(self) -> None:
        log, model = self.disk.log, self.model
        start, end = log.log_start_offset, log.log_end_offset
        assert log.last_stable_offset == model.last_stable_offset(start, end)
        for bytes_max in (1, 300, 1 << 20):
            offsets = [record.offset for record, _ in read_committed(log, bytes_max)]
            assert offsets == model.committed_offsets(start, end), bytes_max
        bases = log.segments.bases
        wanted = [one for one in model.transactions()[1] if one.last_offset >= bases[0]]
        found = [
            Aborted(entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in log.transactions.find(bases[0], bases[0], end)
        ]
        assert found == wanted

    def _crash(self, policy: object) -> None:
        assert isinstance(self.disk.fs, ForgetfulFileSystem)
        self.disk.fs = self.disk.fs.crash(policy)  # type: ignore[arg-type]
        self._open_unclean()

    def _open_unclean(self) -> None:
        start = self.disk.log.proven_start_offset
        point = self.dice.choice((0, min(self._recovery_point, self.disk.log.log_end_offset)))
        log = self.disk._open(clean=False, recovery_point=point, log_start=start)
        if self.disk.report.producers.snapshot is None:  # then nothing but the log tells what was open
            self.model.batches = [each for each in self.model.batches if each.offset >= log.segments.bases[0]]

    @staticmethod
    def _path(base: int, suffix: str = ".log") -> str:
        return f"{DIRECTORY}/{segment_file_name(base, suffix)}"


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_committed_records_are_those_of_a_plain_model(seed: int) -> None:
    """Readers of committed records get what a plain model says whatever happened to the log."""
    log = Transactional(seed)
    steps: list[Callable[[], None]] = [
        *[log.kafka_writes] * 5,
        *[log.seglog_appends] * 2,
        *[log.seglog_transaction] * 5,
        *[log.seglog_marker] * 4,
        *[log.roll] * 3,
        *(log.truncate_to, log.delete_records, log.expire, log.restart, log.kill, log.lose_power, log.flush),
        log.lose_indexes,
    ]
    for _ in range(25):
        log.dice.choice(steps)()
        log.check()


def with_transactions() -> Transactional:
    """A stopped log of three segments: aborted transactions end in the first two, one is open in the last."""
    log = Transactional(1)
    for kinds in (("data", "ABORT"), ("plain", "data", "data")):
        while not log.model.transactions()[1]:
            log.kafka_writes(*kinds)
        log.roll()
    while not log.model.transactions()[0]:
        log.kafka_writes("data")
    log.check()
    log.disk.log.close()
    return log


def index_files(log: Transactional) -> dict[str, bytes]:
    return {path: content for path, content in contents(log.disk.fs).items() if path.endswith(".txnindex")}


def test_a_lost_transaction_index_comes_back_with_the_other_indexes_of_its_segment() -> None:
    log = with_transactions()
    before = index_files(log)
    assert before
    for path in before:
        for suffix in (".txnindex", ".index"):
            log.disk.fs.unlink(path.replace(".txnindex", suffix))
    log.disk._open(clean=True)
    assert index_files(log) == before
    log.check()


@pytest.mark.parametrize("spoil", ["cut", "version", "order", "segment"])
def test_a_transaction_index_that_cannot_be_one_of_its_segment_is_built_again(spoil: str) -> None:
    log = with_transactions()
    before = index_files(log)
    path = next(iter(before))
    if spoil == "cut":
        add_bytes(log.disk.fs, path, b"half an entry")
    else:  # a bit of: the version; the first offset, which is above the last then; the last offset
        flip_bit(log.disk.fs, path, *{"version": (1, 0), "order": (11, 0), "segment": (19, 0)}[spoil])
    log.disk._open(clean=True)
    assert index_files(log) == before
    log.check()


def test_a_log_without_transactions_has_no_index_and_opens_none() -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=300))
    for _ in range(10):
        disk.append(b"v" * 50)
    disk.reopen()
    assert not disk.log.transactions.bases
    assert disk.log.last_stable_offset == disk.log.log_end_offset
    assert not [path for path in contents(disk.fs) if path.endswith(".txnindex")]
