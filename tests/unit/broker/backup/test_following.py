"""A continuous backup of a log directory, on a disk in memory, with a double for the broker: each point has its cut."""

import contextlib
import errno
from collections.abc import Callable, Iterator

import msgspec
import pytest

from seglog_broker.backup.agent_messages import Changes, Cut, PartitionCut, Published, Trouble
from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.following import Follower
from seglog_broker.backup.keeping_up import PAUSE_SECONDS_MAX, ROUNDS_IN_VAIN_MAX, KeepingUp
from seglog_broker.backup.points import PointStore, PointWriter, State
from seglog_broker.backup.store import FILES, BackupError, FileEntry, ms_of
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.awaited import AwaitedLog, write_awaited
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.checksum import crc32c
from tests.logs import ManualClock, append_one, arrive, bases_of, batch, cut_file, opened_directory
from tests.unit.broker.backup.cuts import cut_of
from tests.unit.broker.storage.steps import create_topic, delete_topic, take_oldest

KEEP_MS = 86_400_000
SEGMENT_BYTES = 40_000
VALUE = b"." * 1_000
LOG = f"{0:020}.log"


class CountingDestination(DirectoryDestination):
    """A directory that counts what comes, and does ``before_put`` first, which may raise."""

    sent = 0
    before_put: Callable[[str], None] = staticmethod(lambda _name: None)

    def put(self, name: str, chunks: Iterator[bytes]) -> None:  # type: ignore[override]
        self.before_put(name)

        def counted() -> Iterator[bytes]:
            for chunk in chunks:
                self.sent += len(chunk)
                yield chunk

        super().put(name, counted())


class Broker:
    """A log directory with a topic, and the answers that a broker would give; ``expected`` is what its last cut has."""

    def __init__(self, fs: ForgetfulFileSystem | None = None) -> None:
        self.fs = fs or ForgetfulFileSystem()
        self.clock = ManualClock()
        self.directory = opened_directory(self.fs, clock=self.clock)
        if "t" not in self.directory.registry.topics:
            create_topic(self.directory, "t", 2, {"segment.bytes": str(SEGMENT_BYTES)})
        self.number = 0
        self.cut_before: dict[tuple[str, int], PartitionCut] = {}
        self.replaced: set[tuple[str, int]] = set()
        self.after_cut: Callable[[], object] = lambda: None
        self.expected: dict[str, bytes] = {}
        self.destination = CountingDestination(self.fs, "/place")
        self.begin()

    def begin(self) -> None:
        """A new process for the backup."""
        self.writer = PointWriter(self.destination, self.directory.cluster_id, "mine")
        self.destination.sent = 0
        self.follower = Follower(
            *(self.fs, "/data", self.destination, self.writer),
            ask_cut=self.cut,
            ask_changes=self.changes,
            sent=lambda: self.destination.sent,
            keep_ms=KEEP_MS,
        )

    def log(self, number: int = 0) -> PartitionLog:
        return self.directory.logs["t", number]

    def append(self, count: int = 1, number: int = 0) -> None:
        for _ in range(count):
            append_one(self.log(number), batch(VALUE, timestamp=1000))

    def cut(self, is_whole: bool) -> Cut:
        self.number += 1
        self.clock.now += 1_000
        self.fs.now_ms = self.clock.now
        whole, self.expected = cut_of(self.directory, self.number, self.clock.now), {}
        found = {(partition.topic, partition.partition): partition for partition in whole.partitions}
        for log in self.directory.logs.values():
            for segment in log.segments:
                if self.fs.exists(segment.log_path):
                    data = read_file(self.fs, segment.log_path)
                    size = segment.size if segment is log.segments.active else len(data)
                    self.expected[segment.log_path.removeprefix("/data/")] = data[:size]
        changed = []
        for key, partition in found.items():
            before = None if is_whole else self.cut_before.get(key)
            if before is None or before.bases != partition.bases or key in self.replaced:
                changed.append(partition)
            elif before != partition:
                changed.append(msgspec.structs.replace(partition, bases=None))
        gone = tuple(key for key in self.cut_before if key not in found)
        self.cut_before, self.replaced = found, set()
        registry = whole.registry if is_whole else None
        self.after_cut()
        self.after_cut = lambda: None
        return Cut(self.number, self.clock.now, is_whole, tuple(changed), gone, registry)

    def changes(self) -> Changes:
        return Changes(tuple(self.replaced))

    def publish(self) -> Published:
        """A round that is published; the newest state of the place is the cut."""
        published = self.follower.run_round()
        assert published is not None
        assert published.number == self.number
        self.follower.tidy()
        assert self.logs_of(self.newest()) == self.expected
        return published

    def newest(self) -> State:
        state = PointStore(self.destination).at()
        assert state == self.writer.state
        return state

    def content(self, entry: FileEntry) -> bytes:
        content = b""
        for part in entry.parts:
            data = read_file(self.fs, f"/place/{part.name}")[part.position :][: part.size]
            assert crc32c(data) == part.crc
            content += data
        assert len(content) == entry.size
        return content

    def logs_of(self, state: State) -> dict[str, bytes]:
        return {path: self.content(entry) for path, entry in state.files.items() if path.endswith(".log")}

    def moments(self) -> list[State]:
        """Of each base and point in the place."""
        store = PointStore(self.destination)
        ids = [*store.bases(), *(name for base in store.bases() for name in store.points_of(store.marker(), base))]
        return [store.at(ms_of(name)) for name in ids]

    def objects(self) -> set[str]:
        return {file.name for file in self.destination.names(FILES)}


def started(records: int = 0) -> Broker:
    """A broker with so many records in its first partition, and a base."""
    broker = Broker()
    broker.append(records)
    broker.publish()
    return broker


def test_a_first_round_has_all_files_of_the_cut() -> None:
    broker = Broker()
    broker.append(100)
    published = broker.publish()
    paths = broker.newest().files.keys()
    assert {"meta.properties", "seglog-format", "seglog-topics.json", "t-0/partition.metadata"} <= paths
    closed, active = bases_of(broker.log())[:-1], bases_of(broker.log())[-1]
    assert all(f"t-0/{base:020}{suffix}" in paths for base in closed for suffix in (".index", ".checksum"))
    assert f"t-0/{active:020}.index" not in paths
    assert f"t-0/{active:020}.snapshot" in paths
    assert published.written > 100 * len(VALUE)
    log = broker.newest().logs["t", 0]
    assert (log.log_start, log.log_end, log.segments) == (0, 100, ())


def test_what_comes_after_the_cut_is_not_in_the_point() -> None:
    broker = started(5)
    broker.append(5)
    broker.after_cut = lambda: broker.append(100)  # rolls, too
    broker.publish()
    assert broker.newest().logs["t", 0].log_end == 10
    broker.publish()
    assert broker.newest().logs["t", 0].log_end == 110


def test_appended_bytes_are_written_once_with_little_else() -> None:
    broker = started()
    for _ in range(5):
        broker.append(7)
        assert broker.publish().written < 7 * (len(VALUE) + 80) + 2_000


def test_nothing_new_writes_nothing() -> None:
    broker = started(5)
    known = broker.fs.snapshot()
    published = broker.publish()
    assert (published.number, published.written) == (2, 0)
    assert broker.fs.snapshot() == known


def test_the_clock_alone_is_no_reason_for_a_point() -> None:
    broker = started(5)
    broker.fs.load({"/data/seglog-clock.json": b"{}"})
    assert broker.publish().written == 0
    broker.append()
    broker.publish()
    assert "seglog-clock.json" in broker.newest().files


def test_accounts_that_change_alone_are_a_point() -> None:
    broker = started(5)
    broker.fs.load({"/data/seglog-accounts.json": b"{}"})
    broker.publish()
    assert broker.content(broker.newest().files["seglog-accounts.json"]) == b"{}"
    broker.fs.unlink("/data/seglog-accounts.json")
    broker.publish()
    assert "seglog-accounts.json" not in broker.newest().files


def test_a_new_process_continues_without_a_full_copy() -> None:
    broker = started(100)
    broker.append(3)
    broker.begin()
    assert broker.publish().written < 30_000
    assert len(broker.newest().files[f"t-0/{bases_of(broker.log())[-1]:020}.log"].parts) == 2


def test_a_segment_that_is_awaited_is_taken_over_or_waited_for_and_its_hole_is_never_sent() -> None:
    broker = started(100)
    path = f"/data/t-0/{LOG}"
    content, entry = read_file(broker.fs, path), broker.newest().files[f"t-0/{LOG}"]
    broker.fs.unlink(path)
    write_awaited(broker.fs, path, AwaitedLog(len(content), 1, entry.parts))
    broker.begin()
    assert broker.follower.run_round() is not None
    assert broker.destination.sent < 30_000
    assert broker.newest().files[f"t-0/{LOG}"].parts == entry.parts
    assert not any(name.endswith(".awaited") for name in broker.newest().files)
    broker.destination = CountingDestination(broker.fs, "/another")
    broker.begin()
    for _ in range(2):
        assert broker.follower.run_round() is None
        assert broker.follower.lacking == f"t-0/{LOG}"
    arrive(broker.fs, "/data/t-0", 0, content)
    published = broker.follower.run_round()
    assert published is not None
    assert published.written > len(content)


def test_a_log_that_was_cut_and_has_grown_again_is_put_from_there_on() -> None:
    broker = started(5)
    broker.append(5)
    broker.publish()
    path, active = f"/data/t-0/{LOG}", broker.log().segments.active.size
    cut_file(broker.fs, path, active // 10 * 7)
    with broker.fs.open(path, writable=True) as file:
        file.pwritev([b"x" * active], active // 10 * 7)
    broker.replaced = {("t", 0)}
    broker.publish()
    assert len(broker.newest().files[f"t-0/{LOG}"].parts) == 2


def test_a_segment_replaced_after_the_cut_is_not_published() -> None:
    """As by compaction, at the name of another file: the next cut has it."""
    broker = started(100)
    broker.append(100)

    def compact() -> None:
        broker.replaced = {("t", 0)}
        broker.fs.unlink(f"/data/t-0/{LOG}")
        broker.fs.load({f"/data/t-0/{LOG}": b"compacted"})

    broker.after_cut = compact
    known = broker.newest().id
    assert broker.follower.run_round() is None
    assert broker.newest().id == known
    sent = broker.destination.sent
    broker.publish()
    assert broker.content(broker.newest().files[f"t-0/{LOG}"]) == b"compacted"
    assert broker.destination.sent - sent < 50_000  # what was put before is there


def test_a_first_point_waits_for_each_partition_alone_until_it_was_read_unchanged() -> None:
    broker = Broker()
    broker.append(100, 0)
    broker.append(100, 1)
    broker.after_cut = lambda: broker.replaced.add(("t", 0))  # one or the other is compacted all the time
    assert broker.follower.run_round() is None
    broker.after_cut = lambda: broker.replaced.add(("t", 1))
    assert broker.follower.run_round() is not None
    assert broker.logs_of(broker.newest()) == broker.expected


def test_an_active_segment_that_was_rolled_and_compacted_after_the_cut_is_not_published() -> None:
    broker = started(3)
    broker.append(3)
    size = broker.log().segments.active.size

    def roll_and_compact() -> None:
        broker.replaced = {("t", 0)}
        broker.fs.unlink(f"/data/t-0/{LOG}")
        broker.fs.load({f"/data/t-0/{LOG}": b"c" * (size + 1)})

    broker.after_cut = roll_and_compact
    known = broker.newest().id
    assert broker.follower.run_round() is None
    assert broker.newest().id == known


def test_a_file_that_is_replaced_while_it_is_read_is_not_taken() -> None:
    broker = Broker()
    broker.append(100)
    replaced = False

    def replace(name: str) -> None:
        nonlocal replaced
        if name.startswith(FILES) and not replaced:
            replaced = True
            broker.fs.rename(f"/data/t-0/{LOG}", "/data/old")
            broker.fs.load({f"/data/t-0/{LOG}": read_file(broker.fs, "/data/old")})

    broker.destination.before_put = replace
    assert broker.follower.run_round() is None
    assert broker.follower.lacking == f"t-0/{LOG}"
    broker.publish()


def test_segments_that_expire_after_the_cut_come_in_no_point() -> None:
    broker = started()
    broker.append(100)
    broker.after_cut = lambda: take_oldest(broker.log(), 1)
    assert broker.follower.run_round() is None
    broker.publish()
    assert f"t-0/{LOG}" not in broker.newest().files
    assert broker.newest().logs["t", 0].log_start == bases_of(broker.log())[0]


def test_a_topic_made_again_has_nothing_of_the_old_one() -> None:
    broker = started(100)
    before = broker.newest().logs["t", 0].topic_id
    delete_topic(broker.directory, broker.directory.registry.topics["t"])
    create_topic(broker.directory, "t", 1, {})
    broker.append(3)
    broker.publish()
    state = broker.newest()
    assert state.logs.keys() == {("t", 0)}
    assert state.logs["t", 0].topic_id != before
    assert {path for path in state.files if path.startswith("t-")} == {
        f"t-0/{name}" for name in (LOG, "leader-epoch-checkpoint", "partition.metadata")
    }


def test_a_topic_deleted_after_the_cut_is_gone_with_the_next() -> None:
    broker = started(3)
    broker.append(3)
    broker.after_cut = lambda: delete_topic(broker.directory, broker.directory.registry.topics["t"])
    assert broker.follower.run_round() is None
    broker.publish()
    assert broker.newest().logs == {}


def test_a_topic_deleted_while_no_process_ran_is_gone() -> None:
    broker = started(3)
    delete_topic(broker.directory, broker.directory.registry.topics["t"])
    broker.begin()
    broker.publish()
    assert broker.newest().logs == {}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_point_that_may_be_there_is_put_again_before_the_next(is_there: bool) -> None:
    broker = started(3)
    broker.append(3)
    put = broker.destination.put

    def lose(name: str, chunks: Iterator[bytes]) -> None:
        if is_there or not name.startswith("points/"):
            put(name, chunks)
        if name.startswith("points/"):
            raise DestinationError("away")

    broker.destination.put = lose  # type: ignore[method-assign]
    with pytest.raises(DestinationError, match="away"):
        broker.follower.run_round()
    broker.destination.put = put  # type: ignore[method-assign]
    broker.append(3)
    broker.publish()
    assert [moment.logs["t", 0].log_end for moment in broker.moments()] == [3, 6, 9]


def test_many_small_appends_leave_few_parts() -> None:
    broker = Broker()
    for _ in range(39):
        broker.append()
        broker.publish()
    assert len(broker.newest().files[f"t-0/{LOG}"].parts) < 33
    broker.append(3)  # rolls
    broker.publish()
    assert len(broker.newest().files[f"t-0/{LOG}"].parts) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_at_any_put_loses_nothing(seed: int) -> None:
    for count in range(4):
        broker = started(20)
        broker.append(60 + seed)
        left = count

        def kill(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        broker.destination.before_put = kill
        with contextlib.suppress(KeyboardInterrupt):
            broker.follower.run_round()
        broker.destination.before_put = lambda _name: None
        broker.begin()
        broker.publish()


def test_what_was_put_for_a_long_round_is_not_put_again_by_the_next_process() -> None:
    broker = Broker()
    broker.append(100)
    broker.publish()
    broker.append(100)
    broker.follower.noted_bytes = 1

    def fail(name: str) -> None:
        if not name.startswith(FILES):
            raise DestinationError("away")

    broker.destination.before_put = fail
    with pytest.raises(DestinationError):
        broker.follower.run_round()
    broker.destination.before_put = lambda _name: None
    noted = broker.objects()
    broker.begin()
    assert broker.objects() == noted
    broker.clock.now -= 60_000  # an object put now must not replace one of these
    broker.append()
    assert broker.publish().written < 30_000
    broker.begin()
    assert broker.writer.begun == broker.writer.state
    broker.publish()


class Rounds:
    """``KeepingUp`` with a broker, and what it told."""

    def __init__(self, broker: Broker, lag_ms: int = 10_000) -> None:
        self.broker = broker
        self.now = 0.0
        self.told: list[Published | Trouble] = []
        self.error: Exception | None = None
        self.rounds = KeepingUp(self.opened, self.told.append, lambda: self.now, lag_ms)

    def opened(self) -> Follower:
        if self.error is not None:
            raise self.error
        return self.broker.follower

    @property
    def troubles(self) -> list[str | None]:
        return [message.reason for message in self.told if isinstance(message, Trouble)]


def test_rounds_begin_half_a_lag_apart_or_at_once_when_behind() -> None:
    broker = Broker()
    rounds = Rounds(broker)
    assert rounds.rounds.step() == 5.0

    def take_long() -> None:
        rounds.now += 7

    broker.after_cut = take_long
    assert rounds.rounds.step() == 0.0
    assert Rounds(broker, 100).rounds.step() == 0.5
    assert rounds.troubles == [None]  # what a process before told is over


def test_a_place_that_is_full_is_told_and_tried_again_ever_more_seldom() -> None:
    broker = Broker()
    broker.append(10)
    rounds = Rounds(broker)
    broker.fs.inject(Fault("pwritev", lambda path: path.startswith("/place/"), error=errno.ENOSPC, sticky=True))
    pauses = [rounds.rounds.step() for _ in range(9)]
    assert pauses == sorted(pauses)  # type: ignore[type-var]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    assert all("ENOSPC" in (reason or "") and "command" not in (reason or "") for reason in rounds.troubles)
    broker.fs.heal()
    assert rounds.rounds.step() == 5.0
    assert rounds.troubles[-1] is None
    assert broker.logs_of(broker.newest()) == broker.expected


def test_a_file_that_is_never_there_is_told() -> None:
    broker = Broker()
    broker.append(100)
    broker.fs.unlink(f"/data/t-0/{LOG}")
    rounds = Rounds(broker)
    for _ in range(ROUNDS_IN_VAIN_MAX):
        assert rounds.rounds.step() == 0.5
    rounds.rounds.step()
    (reason,) = rounds.troubles
    assert f"t-0/{LOG}" in (reason or "")


def test_a_place_that_cannot_be_read_yet_is_opened_again() -> None:
    rounds = Rounds(Broker())
    rounds.error = BackupError("a base is damaged")
    assert rounds.rounds.step() == 1.0
    rounds.error = None
    assert rounds.rounds.step() == 5.0
    assert rounds.troubles == ["a base is damaged", None]


def test_what_somebody_has_removed_from_the_place_is_told_and_put_again() -> None:
    broker = started(100)
    broker.destination.delete(broker.newest().files[f"t-0/{LOG}"].parts[0].name)
    broker.append()
    rounds = Rounds(broker)
    broker.begin()  # as the process that has put it, for which it is there
    for state in (broker.writer.state, broker.writer.begun):
        state.files.update(PointStore(broker.destination).at().files)
    assert rounds.rounds.step() == 1.0
    broker.begin()
    assert rounds.rounds.step() == 5.0
    assert [reason and "somebody has removed files/" in reason for reason in rounds.troubles] == [True, None]
    assert broker.logs_of(broker.newest()) == broker.expected


def test_a_place_that_was_taken_over_ends_the_backup() -> None:
    broker = started(3)
    PointStore(broker.destination).take_over("other", broker.newest().id)
    broker.append(3)
    rounds = Rounds(broker)
    assert rounds.rounds.step() is None
    (message,) = rounds.told
    assert isinstance(message, Trouble)
    assert message.is_final


def test_an_old_base_that_is_damaged_is_told_and_nothing_is_removed() -> None:
    broker = started(3)
    damaged = f"/place/backups/{broker.newest().id}.json"
    cut_file(broker.fs, damaged, -5)
    known = broker.objects()
    broker.clock.now += 2 * KEEP_MS
    broker.append(3)
    rounds = Rounds(broker)
    for _ in range(2):
        assert rounds.rounds.step() == 5.0
    (reason,) = rounds.troubles
    assert "is damaged" in (reason or "")
    assert known < broker.objects()
