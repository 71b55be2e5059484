"""Producer snapshots: which are read, which are removed, and that a start from any of them ends in the same state."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.producers.producer_snapshots import (
    ProducerLoadReport,
    ProducerSnapshots,
    ReplayedBatch,
    stray_snapshots,
)
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_broker.testing import forgetful
from seglog_protocol.checksum import crc32c
from seglog_protocol.segment_files import SNAPSHOT_SUFFIX, segment_file_name
from seglog_protocol.transaction_files import (
    AbortedTransaction,
    EndMarker,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)
from tests.support import each_case, examples
from tests.unit.broker.storage.producers.producer_batches import NOW, control, data, last_records, plain
from tests.unit.protocol.test_transaction_files import SNAPSHOT

DIRECTORY = "/t-0"
DAY = 86_400_000
SPOILT = bytes([0, 1]) + bytes(8)


class Partition:
    """The batches of a log, its segments, and its snapshots on a disk."""

    def __init__(
        self, *batches: ReplayedBatch, bases: Sequence[int] = (0,), fs: forgetful.ForgetfulFileSystem | None = None
    ) -> None:
        self.fs = fs or forgetful.ForgetfulFileSystem()
        if fs is None:
            self.fs.load({f"{DIRECTORY}/": b""})
        self.batches = list(batches)
        self.bases = list(bases)
        self.log_start = 0
        self.replays: list[tuple[int, int]] = []
        self.restart()

    def restart(self) -> None:
        """Load the snapshots as a new process does."""
        self.state = ProducerState(expiration_ms=DAY)
        self.snapshots = ProducerSnapshots(self.fs, DIRECTORY, self.state)

    @property
    def log_end(self) -> int:
        return max([self.bases[-1], *(header.next_offset for header, _ in self.batches)])

    @property
    def files(self) -> list[int]:
        """Offsets of the snapshots on the disk."""
        stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in self.fs.list_directory(DIRECTORY)]
        return [int(stem) for stem in stems if len(stem) == 20]

    def replay(self, start: int, end: int) -> Iterable[ReplayedBatch]:
        self.replays.append((start, end))
        return [batch for batch in self.batches if batch.header.last_offset >= start and batch.header.base_offset < end]

    def load(self, *, recovered_from: int | None = None, now_ms: int = NOW) -> ProducerLoadReport:
        report = self.snapshots.load(
            self.fs.list_directory(DIRECTORY),
            self.bases,
            log_start=self.log_start,
            log_end=self.log_end,
            recovered_from=recovered_from,
            now_ms=now_ms,
            replay=self.replay,
        )
        assert self.state.end_offset == self.log_end
        assert self.files == self.snapshots.offsets
        return report

    def recover_cut(self, offset: int) -> None:
        """Load after a crash that took the batches from ``offset`` on."""
        self.batches = [batch for batch in self.batches if batch.header.last_offset < offset]
        self.bases = [base for base in self.bases if base <= offset]
        self.restart()
        self.load(recovered_from=offset)

    def put(self, offset: int, content: bytes = encode_snapshot([])) -> None:
        """Write a snapshot as an earlier process would have."""
        file = self.fs.open(_path(offset), create=True)
        file.pwritev([content], 0)
        file.fdatasync()
        file.close()
        self.fs.sync_directory(DIRECTORY)


def _path(offset: int) -> str:
    return f"{DIRECTORY}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"


def counting(count: int) -> list[ReplayedBatch]:
    """Batches of one record each from producer 1, sequence and offset the same."""
    return [ReplayedBatch(data(1, number, at=number)) for number in range(count)]


def seen(state: ProducerState) -> list[tuple[int, int]]:
    """(producer id, last sequence)."""
    return [(entry.producer_id, entry.last_sequence) for entry in state.entries()]


# --- Which are read ---------------------------------------------------------------------------------------------------


def known(sequence: int) -> bytes:
    """A snapshot that knows producer 1 up to this sequence."""
    return encode_snapshot([ProducerEntry(1, 0, sequence, sequence, 0, NOW, -1, -1)])


@each_case(
    ("count", "bases", "put", "recovered_from", "report", "files"),
    [
        # A snapshot at the end of the log is all that a clean start reads; batches after the newest one are replayed.
        (5, [0], {5: known(4)}, None, ProducerLoadReport(snapshot=5), [5]),
        (5, [0, 3], {3: known(2)}, None, ProducerLoadReport(snapshot=3, replayed=2), [3, 5]),
        # One that is corrupt is removed and an older one read, or the whole log where there is none.
        *(
            (5, [0, 2], {2: known(1), 5: spoilt}, None, ProducerLoadReport(2, corrupt=[5], replayed=3), [2, 5])
            for spoilt in (b"", SPOILT, SNAPSHOT[:-1], SNAPSHOT + b"\0", b"\0\1rubbish")
        ),
        (5, [0, 2], {2: SPOILT, 5: SPOILT}, None, ProducerLoadReport(corrupt=[5, 2], replayed=5), [2, 5]),
        # A clean log of one segment is read where its only snapshot found no room, and one that was not stopped well.
        (9, [0], {}, None, ProducerLoadReport(replayed=9), [9]),
        (9, [0, 3, 6, 8], {}, 8, ProducerLoadReport(replayed=9), [6, 8, 9]),
        # Strays are removed before anything is read.
        (9, [0, 5], {2: known(1), 5: known(4), 9: known(8)}, None, ProducerLoadReport(snapshot=9), [5, 9]),
        # A new log gets no snapshot at its start.
        (0, [0], {}, None, ProducerLoadReport(), []),
    ],
)
def test_which_snapshots_a_start_reads_and_leaves(
    count: int,
    bases: list[int],
    put: dict[int, bytes],
    recovered_from: int | None,
    report: ProducerLoadReport,
    files: list[int],
) -> None:
    partition = Partition(*counting(count), bases=bases)
    for offset, content in put.items():
        partition.put(offset, content)
    assert partition.load(recovered_from=recovered_from) == report
    assert partition.replays == ([(report.snapshot or 0, count)] if report.replayed else [])
    assert seen(partition.state) == ([(1, count - 1)] if count else [])
    assert partition.files == files
    assert [read_file(partition.fs, _path(offset)) for offset in files] == [known(offset - 1) for offset in files]


def test_what_kafka_wrote_is_known_after_a_load() -> None:
    partition = Partition(bases=[0, 200])
    partition.put(200, SNAPSHOT)
    partition.load(now_ms=123456)
    assert encode_snapshot(partition.state.entries()) == SNAPSHOT
    assert partition.state.first_unstable_offset == 100


@pytest.mark.parametrize("content", [b"\0\2" + SNAPSHOT[2:], b"rubbish, rubbish"])
def test_a_snapshot_of_another_version_is_kept_aside_and_named(content: bytes) -> None:
    partition = Partition(*counting(5), bases=[0, 2])
    partition.put(5, content)
    report = partition.load()
    copy = f"{_path(5)}.unreadable-{crc32c(content):08x}"
    assert (report.corrupt, report.replayed) == ([5], 5)
    [problem] = report.problems
    assert copy.rpartition("/")[2] in problem
    assert read_file(partition.fs, copy) == content


def test_replay_without_a_readable_snapshot() -> None:
    """Without a readable snapshot replay begins with the first segment where a transaction may begin."""
    partition = Partition(*counting(9), bases=[0, 5])
    partition.log_start = 4
    partition.load(recovered_from=0)
    assert partition.replays == [(0, 9)]


def test_a_clean_log_without_any_snapshot_gets_empty_ones_and_is_not_read() -> None:
    partition = Partition(*counting(9), bases=[0, 3, 6, 8])
    assert partition.load() == ProducerLoadReport()
    assert partition.replays == []
    assert seen(partition.state) == []
    assert partition.files == [6, 8, 9]
    assert all(decode_snapshot(read_file(partition.fs, _path(offset))) == [] for offset in (6, 8, 9))


def test_a_snapshot_for_which_there_is_no_room_is_left_out() -> None:
    partition = Partition(*counting(9), bases=[0, 3, 6, 8])
    partition.fs.limit_free_inodes(0)
    assert partition.load(recovered_from=8).replayed == 9
    assert (seen(partition.state), partition.files) == ([(1, 8)], [])
    partition.snapshots.take_if_there_is_room(9)
    assert partition.files == []
    partition.fs.limit_free_inodes(None)
    partition.snapshots.take_if_there_is_room(9)
    assert partition.files == [9]


def test_a_producer_whose_batches_have_all_expired_is_known_after_a_crash() -> None:
    """The producer may not have got its last reply, and may send that batch again."""
    others = [ReplayedBatch(data(2, number, at=number)) for number in range(4, 9)]
    partition = Partition(*others, bases=[4, 6])
    partition.log_start = 4
    partition.put(4, encode_snapshot([ProducerEntry(1, 0, 3, 3, 0, NOW, -1, -1)]))
    assert partition.load(recovered_from=4) == ProducerLoadReport(snapshot=4, replayed=5)
    assert seen(partition.state) == [(1, 3), (2, 8)]
    assert partition.state.check(data(1, 3)) is not None, "a repetition"


def test_a_snapshot_above_what_recovery_read_anew_is_not_believed() -> None:
    partition = Partition(*counting(4), ReplayedBatch(data(2, 0, at=9)), bases=[0, 3, 8])
    for offset in (3, 8):
        partition.put(offset, encode_snapshot([ProducerEntry(1, 0, offset - 1, offset - 1, 0, NOW, -1, -1)]))
    report = partition.load(recovered_from=3)  # offsets 4 to 7 turned out to be damaged
    assert (report.snapshot, report.replayed) == (3, 2)
    assert seen(partition.state) == [(1, 3), (2, 0)]
    assert decode_snapshot(read_file(partition.fs, _path(8)))[0].last_sequence == 3


def test_quiet_producers_are_loaded() -> None:
    """Producers that were quiet for too long are loaded because a start cannot trust its clock."""
    partition = Partition(bases=[0, 9])
    entries = [ProducerEntry(1, 0, 0, 1, 0, NOW - DAY, -1, -1), ProducerEntry(3, 0, 0, 3, 0, NOW - DAY, -1, 3)]
    partition.put(9, encode_snapshot(entries))
    partition.load()
    assert partition.state.entries() == entries
    assert partition.state.expire(NOW) == 1, "the open transaction keeps its producer"


def test_an_open_transaction_survives_and_its_end_is_reported() -> None:
    batches = [ReplayedBatch(data(1, 0, at=0, transactional=True)), ReplayedBatch(plain(at=1))]
    partition = Partition(*batches)
    partition.load(recovered_from=0)
    assert partition.state.first_unstable_offset == 0
    partition.batches.append(ReplayedBatch(control(1, at=2), EndMarker("ABORT", 0)))
    partition.restart()
    assert partition.load().aborted == [AbortedTransaction(0, 1, 0, 2, 3)]
    assert partition.state.first_unstable_offset is None


# --- Which are strays -------------------------------------------------------------------------------------------------


@each_case(
    ("files", "bases", "strays"),
    [
        ([2, 5, 42], [5], [2]),
        ([2, 5, 42], [42], [2, 5]),
        ([2, 5, 42], [2, 5, 42], []),
        ([2, 5, 42], [40], [2, 5]),
        ([2, 5, 42], [43], [2, 5, 42]),
        ([2, 5], [], [2]),
        ([], [0], []),
    ],
)
def test_a_snapshot_where_no_segment_begins_is_a_stray_unless_it_may_be_the_logs_end(
    files: list[int], bases: list[int], strays: list[int]
) -> None:
    assert stray_snapshots(files, bases) == strays


def test_other_files_are_not_mistaken_for_snapshots() -> None:
    partition = Partition(*counting(1))
    others = [f"{_path(1)}.deleted", f"{_path(5)}.tmp", f"{DIRECTORY}/7.snapshot", f"{DIRECTORY}/notes"]
    for path in others:
        partition.fs.open(path, create=True).close()
    partition.load()
    assert partition.snapshots.offsets == [1]
    assert all(partition.fs.exists(path) for path in others)


# --- Taking -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_taken_only_when_the_end_has_moved() -> None:
    partition = Partition()
    partition.load()
    partition.state.apply(data(1, 0), 0)
    partition.snapshots.take(1)
    before = len(partition.fs.operations)
    partition.snapshots.take(1)
    assert len(partition.fs.operations) == before
    partition.state.apply(plain(3), 1)  # which is not idempotent, and moves the end too
    partition.snapshots.take(4)
    assert partition.files == [1, 4]
    assert read_file(partition.fs, _path(4)) == encode_snapshot(partition.state.entries())
    with pytest.raises(ValueError, match="up to 4"):
        partition.snapshots.take(2)


@each_case(("sync", "policy"), [(True, forgetful.POWER_LOSS), (False, forgetful.PROCESS_KILL)])
def test_a_snapshot_survives_a_power_cut_and_without_sync_the_process(
    sync: bool, policy: forgetful.CrashPolicy
) -> None:
    partition = Partition()
    partition.load()
    partition.state.apply(data(1, 0), 0)
    before = len(partition.fs.operations)
    partition.snapshots.take(1, sync=sync)
    names = {operation.name for operation in partition.fs.operations[before:]}
    assert names & {"fdatasync", "sync_directory"} == ({"fdatasync", "sync_directory"} if sync else set())
    found = partition.fs.found_after(policy)
    assert decode_snapshot(read_file(found, _path(1))) == partition.state.entries()


# --- Removing ---------------------------------------------------------------------------------------------------------


def test_snapshots_go_with_the_segments_they_begin() -> None:
    partition = Partition(*counting(9), bases=[0, 3, 6])
    partition.load(recovered_from=0)
    assert partition.files == [3, 6, 9]
    partition.fs.unlink(_path(3))  # somebody removed it
    partition.snapshots.drop([0, 3])
    assert partition.files == partition.snapshots.offsets == [6, 9]
    partition.snapshots.drop([6])
    assert partition.files == partition.snapshots.offsets == [9]
    assert seen(partition.state) == [(1, 8)]


@each_case("policy", [forgetful.POWER_LOSS, *map(forgetful.RANDOM, range(8))])
@each_case("offset", [3, 4])
def test_no_power_cut_brings_back_a_snapshot_of_batches_that_were_cut(
    offset: int, policy: forgetful.CrashPolicy
) -> None:
    """The log continues after the cut, and the snapshot would make lost batches look like repetitions."""
    partition = Partition(*counting(9), bases=[0, 3, 6])
    partition.load(recovered_from=0)
    partition.recover_cut(offset)
    left = {path for path in partition.fs.found_after(policy).snapshot() if path.endswith(SNAPSHOT_SUFFIX)}
    assert left <= {_path(3), _path(4)}


@each_case("policy", [forgetful.POWER_LOSS, forgetful.PROCESS_KILL, *map(forgetful.RANDOM, range(8))])
def test_a_load_that_is_interrupted_anywhere_is_simply_made_again(policy: forgetful.CrashPolicy) -> None:
    batches = [*counting(6), ReplayedBatch(data(2, 0, at=9)), ReplayedBatch(data(2, 1, at=10))]
    crashes = 0
    while True:
        partition = Partition(*batches, bases=[0, 3, 8])
        for offset in (3, 8, 11):
            partition.put(offset, encode_snapshot([ProducerEntry(7, 0, 0, offset - 1, 0, NOW, -1, -1)]))
        partition.fs.crash_after(len(partition.fs.operations) + crashes)
        try:
            partition.load(recovered_from=0)
        except forgetful.SimulatedCrash:
            partition = Partition(*batches, bases=[0, 3, 8], fs=partition.fs.crash(policy))
            partition.load(recovered_from=0)
            crashes += 1
        else:
            break
        assert seen(partition.state) == [(1, 5), (2, 1)]
    assert crashes > 10


# --- From any point ---------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[ReplayedBatch]:
    """Batches of a log that Kafka wrote, as recovery may find them: with gaps, markers, emptied markers, old epochs."""
    batches: list[ReplayedBatch] = []
    offset = 0
    for number in range(draw(st.integers(1, 30))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 5]))
        producer_id, epoch, kind = draw(st.integers(0, 4)), draw(st.integers(0, 2)), draw(st.integers(0, 6))
        timestamp = NOW + number
        if kind == 0:
            batch = ReplayedBatch(plain(draw(st.integers(1, 3)), at=offset))
        elif kind == 1:
            type_ = draw(st.sampled_from(["ABORT", "COMMIT"]))
            marker = EndMarker(type_, draw(st.integers(0, 3)))
            batch = ReplayedBatch(control(producer_id, epoch=epoch, at=offset, timestamp=timestamp), marker)
        elif kind == 2:
            batch = ReplayedBatch(control(producer_id, epoch=epoch, at=offset, count=0))
        else:
            sequence, count = draw(st.sampled_from([0, 1, 7, 2**31 - 1])), draw(st.integers(1, 4))
            header = data(
                producer_id,
                sequence,
                count,
                epoch=epoch,
                at=offset,
                timestamp=timestamp,
                transactional=draw(st.booleans()),
            )
            batch = ReplayedBatch(header)
        batches.append(batch)
        offset = batch.header.next_offset
    return batches


@given(histories(), st.data(), st.integers(1, 6))
@settings(max_examples=examples(200))
def test_a_snapshot_from_any_offset_and_the_batches_after_it_give_the_whole_state(
    batches: list[ReplayedBatch], choices: st.DataObject, limit: int
) -> None:
    """The state is compared without the older batches of each producer, which a snapshot does not have."""
    cut = choices.draw(st.integers(0, len(batches)))
    whole = ProducerState(expiration_ms=DAY, producers_max=limit)
    resumed = ProducerState(expiration_ms=DAY, producers_max=limit)
    for number, (header, marker) in enumerate(batches):
        if number == cut:
            resumed.restart(whole.end_offset, decode_snapshot(encode_snapshot(whole.entries())))
        aborted = whole.apply_replayed(header, marker)
        if number >= cut:
            assert resumed.apply_replayed(header, marker) == aborted
            assert resumed.entries() == whole.entries()
            assert resumed.first_unstable_offset == whole.first_unstable_offset
            assert last_records(resumed) == last_records(whole)


@given(histories(), st.data())
@settings(max_examples=examples(200))
def test_a_load_from_any_snapshots(batches: list[ReplayedBatch], choices: st.DataObject) -> None:
    """A load from whatever snapshots are left ends in the same state and in nothing out of place."""
    starts = [header.base_offset for header, _ in batches]
    bases = sorted({starts[0], *choices.draw(st.sets(st.sampled_from(starts), max_size=4), label="segments")})
    whole = Partition(*batches, bases=bases)
    whole.load(recovered_from=0)
    for lost in choices.draw(st.sets(st.sampled_from(bases)), label="lost"):
        whole.snapshots.drop([lost])
    for spoilt in choices.draw(st.sets(st.sampled_from([whole.log_end, *bases])), label="spoilt"):
        if spoilt in whole.files:
            whole.put(spoilt, SPOILT)
    again = Partition(*batches, bases=bases, fs=whole.fs)
    report = again.load(recovered_from=choices.draw(st.sampled_from(bases), label="recovered from"))
    assert again.state.entries() == whole.state.entries()
    assert again.state.first_unstable_offset == whole.state.first_unstable_offset
    assert report.replayed == sum(header.base_offset >= (report.snapshot or 0) for header, _ in batches)


@given(histories(), st.data())
def test_a_log_that_a_crash_has_cut_has_the_producers_of_its_remaining_batches(
    batches: list[ReplayedBatch], choices: st.DataObject
) -> None:
    starts = [header.base_offset for header, _ in batches]
    bases = sorted({starts[0], *choices.draw(st.sets(st.sampled_from(starts), max_size=4), label="segments")})
    partition = Partition(*batches, bases=bases)
    partition.load(recovered_from=0)
    offset = choices.draw(st.integers(starts[0], partition.log_end), label="cut at")
    partition.recover_cut(offset)
    plainly = ProducerState(expiration_ms=DAY)
    for header, marker in partition.batches:
        plainly.apply_replayed(header, marker)
    assert partition.state.entries() == plainly.entries()
    assert all(file <= offset for file in partition.files)
