"""What readers of committed records get of a log with transactions, held against a plain model of them."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.pauses import ColdReadError, TurnWantedError
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol.segment_files import segment_file_name
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY
from tests.logs import DIRECTORY, LogOnDisk, add_bytes, contents, flip_bit
from tests.support import each_case, examples
from tests.unit.broker.storage.log.transactions import (
    Aborted,
    Batch,
    Model,
    append_in_transaction,
    due_of,
    end_transaction,
    fetch_committed,
    read_committed,
)

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
        start = self.disk.log.state_file.proven_start
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
        *(log.delete_records, log.expire, log.restart, log.kill, log.lose_power, log.flush, log.lose_indexes),
    ]
    for _ in range(25):
        log.dice.choice(steps)()
        log.check()


def with_transactions() -> Transactional:
    """A stopped log of three segments: transactions were aborted and committed in two, one is open in the last."""
    log = Transactional(1)
    for markers in (("ABORT", "COMMIT", "ABORT"), ("COMMIT", "ABORT", "ABORT")):
        log.model.batches += [append_in_transaction(log.disk.log, producer_id, 2) for producer_id in range(3)]
        log.model.batches += [end_transaction(log.disk.log, *ending) for ending in enumerate(markers)]
        log.roll()
    log.model.batches.append(append_in_transaction(log.disk.log, 0))
    log.check()
    log.disk.log.close()
    return log


def index_files(log: Transactional) -> dict[str, bytes]:
    return {path: content for path, content in contents(log.disk.fs).items() if path.endswith(".txnindex")}


def with_bit(number: int) -> Callable[[bytes, bytes], bytes | None]:
    return lambda content, _: (int.from_bytes(content, "little") ^ 1 << number).to_bytes(len(content), "little")


SPOILT: Final[dict[str, Callable[[bytes, bytes], bytes | None]]] = {
    "missing": lambda _content, _other: None,
    "cut": lambda content, _: content[:-1],
    "without its last entry": lambda content, _: content[: -TXN_INDEX_ENTRY.size],
    "one entry more": lambda content, _: content + content[-TXN_INDEX_ENTRY.size :],
    "of another segment": lambda _, other: other,
    "without a file before": lambda _, other: other,
    **{f"bit {number}": with_bit(number) for number in range(8 * TXN_INDEX_ENTRY.size)},
}
"""What becomes of the content of an index; ``other`` is that of another one."""
CASES: Final = [
    pytest.param(how, marks=pytest.mark.soak) if how[:3] == "bit" and int(how[4:]) % 5 else how for how in SPOILT
]


def spoil(log: Transactional, how: str) -> str:
    """Spoil the first index, or that of a segment without one; returns its path."""
    paths = list(before := index_files(log))
    path = log._path(log.disk.log.active.base_offset, ".txnindex") if "without a file" in how else paths[0]
    spoilt = SPOILT[how](before.get(path, b""), before[paths[1]])
    if log.disk.fs.exists(path):
        log.disk.fs.unlink(path)
    if spoilt is not None:
        add_bytes(log.disk.fs, path, spoilt)
    return path


@each_case("how", CASES)
def test_a_transaction_index_that_is_not_as_it_was_written_is_built_again_at_a_start_and_told(how: str) -> None:
    log = with_transactions()
    before = index_files(log)
    name = spoil(log, how).rpartition("/")[2]
    log.disk._open(clean=True)
    assert index_files(log) == before
    assert [problem for problem in log.disk.report.problems if name in problem]
    log.check()
    log.restart()
    assert not log.disk.report.problems


@each_case("how", [how for how in CASES if "one entry more" != how != "without a file before"])
def test_a_transaction_index_that_changes_under_a_running_broker_is_built_again_by_the_next_look_up(how: str) -> None:
    log = with_transactions()
    before = index_files(log)
    log.disk._open(clean=True)
    path = spoil(log, how)
    only_warm = log.disk.log._log.files.handles.only_warm
    log.disk.log._log.files.handles.forget(path)  # the memory of the system
    for _ in range(5):
        with only_warm, suppress(TurnWantedError, ColdReadError):
            fetch_committed(log.disk.log, 0, 1 << 20)
    log.check()
    assert index_files(log) == before
    assert log.disk.log.transactions.mended == [log.disk.log.segments.bases[0]]
    assert log.disk.log.transactions.look_at_files()() == []


def test_an_index_that_was_begun_before_the_newest_snapshot_stays_whole() -> None:
    """The last stop had no room for a snapshot: the batches behind the one before are read."""
    log = with_transactions()
    log.disk._open(clean=True)
    snapshots: list[tuple[str, bytes]] = []
    for _ in range(2):
        log.model.batches += [append_in_transaction(log.disk.log, 1), end_transaction(log.disk.log, 1, "ABORT")]
        log.restart()
        snapshots.append(max(item for item in contents(log.disk.fs).items() if item[0].endswith(".snapshot")))
    log.disk.log.close()
    log.disk.fs.unlink(snapshots[1][0])
    add_bytes(log.disk.fs, *snapshots[0])
    log.disk._open(clean=True)
    assert log.disk.report.producers.replayed
    log.check()


@each_case("spoil", ["cut", "version", "order", "segment"])
def test_a_transaction_index_of_kafka_that_cannot_be_one_of_its_segment_is_built_again(spoil: str) -> None:
    log = with_transactions()
    log.disk.fs.unlink(f"{DIRECTORY}/{PARTITION_STATE_FILE}")
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
