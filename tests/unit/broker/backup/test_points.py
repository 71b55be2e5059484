"""Bases and points of a continuous backup: written, read at any moment, taken over, removed, and a crash in between."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.backup.destination import MARKER, StoredFile
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.points import (
    BASE_MS,
    POINTS_BYTES_MIN,
    WRITER,
    FileChange,
    LostFilesError,
    Point,
    PointStore,
    PointWriter,
    State,
    TakenOverError,
    decode_point,
    difference,
)
from seglog_broker.backup.store import (
    FILES,
    BackupError,
    BackupStore,
    FileEntry,
    LogEntry,
    Manifest,
    Marker,
    epoch_of,
    id_at,
    ms_of,
    read_marker,
    time_of,
)
from seglog_broker.storage.segment.awaited import Part
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    ForgetfulFileSystem,
)
from seglog_protocol.checkpoint_files import TopicPartition
from tests.logs import flip_bit
from tests.support import each_case, examples

CLUSTER, MINE, OTHER = "cluster", "mine", "other"
START = 1_764_000_000_000
DAY_MS = 24 * BASE_MS


class Place:
    """A place on a disk in memory, with a writer; ``known`` is what each moment has to have, by its id."""

    def __init__(self, fs: ForgetfulFileSystem | None = None, directory_id: str = MINE) -> None:
        self.fs = fs or ForgetfulFileSystem()
        self.now = START
        self.known: dict[str, Manifest] = {}
        self.begin(directory_id)

    def begin(self, directory_id: str = MINE) -> None:
        self.writer = PointWriter(self.destination, CLUSTER, directory_id)

    @property
    def destination(self) -> DirectoryDestination:
        return DirectoryDestination(self.fs, "/place")

    @property
    def store(self) -> PointStore:
        return PointStore(self.destination)

    def put(self, size: int = 10) -> Part:
        self.now += 5_000
        name = f"{FILES}{self.writer.next_id(self.now)}-000000"
        self.destination.put(name, [bytes(size)])
        return Part(name, 0, size, 0)

    def grow(
        self,
        path: str = "t-0/0.log",
        *,
        kept: int | None = None,
        removed: Iterable[str] = (),
        logs: Iterable[LogEntry] = (),
        gone: Iterable[TopicPartition] = (),
    ) -> str:
        """Publish a moment at which a file has one part more, behind the first ``kept``; its id."""
        part, new = self.put(), self.writer.begun  # as a follower does: it is the writer's, too
        for name in removed:
            new.files.pop(name, None)
        parts = (*(new.files[path].parts[:kept] if path in new.files else ()), part)
        new.files[path] = FileEntry(path, sum(part.size for part in parts), 1, 2, parts)
        for key in gone:
            del new.logs[key]
        new.logs.update(((log.topic, log.partition), log) for log in logs)
        self.now += 5_000
        new.id = self.writer.next_id(self.now)
        self.writer.publish(new)
        self.known[new.id] = self.writer.state.manifest()
        return new.id

    def check(self, moments: dict[str, Manifest] | None = None) -> None:
        """Each moment is as it was, and has its files."""
        there = {file.name for file in self.destination.names(FILES)}
        for moment, manifest in (self.known if moments is None else moments).items():
            found = self.store.at(ms_of(moment)).manifest()
            assert found == manifest
            assert set(found.names) <= there


def test_a_point_is_read_back_and_one_that_leads_out_of_a_directory_or_was_changed_is_refused() -> None:
    log = LogEntry("t", 0, "id", 3, 9, ())
    change = FileChange("t-0/0.log", 30, 1, 2, 1, (Part("files/a", 5, 20, 7),))
    point = Point("1", "0", "0", (change,), ("t-1/0.log",), (log,), (("t", 1),))
    content = point.encode()
    assert decode_point(content, "it") == point
    for strange in (replace(point, removed=("../a",)), replace(point, files=(change._replace(path="/etc/passwd"),))):
        with pytest.raises(BackupError, match="it is not understood: an entry in it is not possible"):
            decode_point(strange.encode(), "it")
    with pytest.raises(BackupError, match="it is damaged"):
        decode_point(content.replace(b"t-1/", b"t-2/"), "it")


def test_an_id_says_when_and_in_which_epoch() -> None:
    for epoch, end in ((0, "Z"), (12, "Z-12")):
        found = id_at(START + 7, epoch)
        assert found == f"20251124T160000.007{end}"
        assert (ms_of(found), epoch_of(found), time_of(f"{found}-000003")) == (START + 7, epoch, "20251124T160000.007Z")


def test_a_point_changes_removes_and_makes_anew() -> None:
    first, second, third = (Part(f"files/{name}", 0, 10, 0) for name in "abc")
    state = State(CLUSTER, MINE, "0", "0")
    log = LogEntry("t", 0, "old", 0, 5, ())
    changes = [FileChange(path, 20, 1, 2, 0, (first, second)) for path in ("t-0/a", "t-0/b", "t-0/c")]
    state.apply(Point("1", "0", "0", tuple(changes), (), (log, log._replace(partition=1))))
    grown = FileChange("t-0/a", 20, 3, 4, 1, (third,))
    anew = FileChange("t-0/b", 10, 3, 5, 0, (third,))
    new = log._replace(topic_id="new")
    state.apply(Point("2", "0", "1", (grown, anew), ("t-0/b", "t-0/c"), (new,), (("t", 0), ("t", 1))))
    assert state.files == {
        "t-0/a": FileEntry("t-0/a", 20, 3, 4, (first, third)),
        "t-0/b": FileEntry("t-0/b", 10, 3, 5, (third,)),
    }
    assert state.logs == {("t", 0): new}
    assert (state.id, state.base) == ("2", "0")
    before = state.copy()
    for wrong in (grown._replace(kept=3), grown._replace(kept=-1), grown._replace(size=19), grown._replace(path="x")):
        with pytest.raises(BackupError, match="the point 3 is not understood"):
            state.apply(Point("3", "0", "2", (anew, wrong), ("t-0/a",) if wrong.kept == 1 else ()))
        assert state == before


PARTS = st.lists(st.sampled_from([Part(f"files/{name}", 0, 10, 0) for name in "abc"]), max_size=4)
STATES = st.dictionaries(st.sampled_from(["t-0/a", "t-0/b", "t-0/c"]), PARTS)


@settings(max_examples=examples(300))
@given(STATES, STATES, st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_a_difference_leads_from_any_state_to_any(
    one: dict[str, list[Part]], other: dict[str, list[Part]], logs: set[int], other_logs: set[int]
) -> None:
    first, second = (
        State.of(
            Manifest(
                id_at(START + number),
                START + number,
                CLUSTER,
                MINE,
                "",
                tuple(FileEntry(path, 10 * len(parts), 1, 2, tuple(parts)) for path, parts in files.items()),
                tuple(LogEntry("t", partition, "id", 0, number, ()) for partition in there),
                is_cut=True,
            )
        )
        for number, (files, there) in enumerate([(one, logs), (other, other_logs)])
    )
    state = first.copy()
    point = difference(state, second)
    for change in point.files:
        had, has = one.get(change.path, []), other[change.path]
        assert had[change.kept : change.kept + 1] != has[change.kept : change.kept + 1] or had == has
    state.apply(point)
    assert state == second


def test_each_moment_is_read_as_it_was() -> None:
    place = Place()
    place.grow(logs=(LogEntry("t", 0, "id", 0, 3, ()),))
    place.grow(kept=0)
    place.grow("t-1/0.log", logs=(LogEntry("t", 1, "id", 0, 3, ()),))
    place.begin()
    assert place.writer.state == place.store.at()
    assert place.writer.next_id(0) > max(place.known)
    place.grow(removed=("t-1/0.log",), gone=(("t", 1),))
    place.grow()
    place.check()
    first, last = min(place.known), max(place.known)
    assert place.store.at().manifest() == place.store.at(ms_of(last) + 10**9).manifest() == place.known[last]
    assert place.store.at(ms_of(last) - 1).id < last
    with pytest.raises(BackupError, match=f"has nothing of that time: the first moment that it has is {first}"):
        place.store.at(ms_of(first) - 1)


def test_a_base_follows_an_hour_or_points_as_long_as_it_and_is_the_first_of_each_writer() -> None:
    place = Place()
    first = place.grow()
    points = [place.grow() for _ in range(3)]
    assert place.store.bases() == [first]
    place.now += BASE_MS
    second = place.grow()
    assert place.store.bases() == [first, second]
    assert {file.name for file in place.destination.names("points/")} == {
        f"points/{first}/{point}.json" for point in points
    }
    place.begin()
    third = place.grow()
    long = place.grow(logs=[LogEntry("t", number, "." * 100, 0, 0, ()) for number in range(POINTS_BYTES_MIN // 100)])
    assert place.store.bases() == [first, second, third, long]
    place.check()


def test_ids_rise_though_the_clock_is_set_back() -> None:
    place = Place()
    place.grow()
    place.now -= DAY_MS
    place.grow()
    place.begin()
    place.grow()
    assert sorted(place.known) == list(place.known)
    place.check()


def test_a_follower_gets_what_it_lacks_through_bases_and_take_overs() -> None:
    place = Place()
    place.grow()
    followers = [place.store.at()]
    for turn in range(6):
        place.grow(kept=turn % 3)
        if turn == 3:
            place.store.take_over(OTHER, max(place.known))
        if turn % 2:
            place.begin(OTHER if turn >= 3 else MINE)
        followers.append(place.store.at())
    for follower in followers:
        for point in place.store.since(follower):
            follower.apply(point)
        assert replace(follower, directory_id=OTHER) == place.store.at()
        assert list(place.store.since(follower)) == []


def test_a_point_that_is_lost_is_named_and_the_moments_before_it_stay() -> None:
    place = Place()
    first, second, third, fourth = (place.grow() for _ in range(4))
    place.destination.delete(f"points/{first}/{third}.json")
    with pytest.raises(BackupError, match=f"/place lacks the point between {second} and {fourth}"):
        place.store.at()
    place.check({moment: place.known[moment] for moment in (first, second)})


def test_a_writer_adds_nothing_behind_what_is_damaged_and_says_what_now() -> None:
    place = Place()
    place.grow()
    last = place.grow()
    path = f"/place/points/{place.store.bases()[0]}/{last}.json"
    flip_bit(place.fs, path, 60)
    before = place.fs.snapshot()
    with pytest.raises(BackupError, match=rf"^{path} is damaged: .*\. Nothing is added behind that: move it away, and"):
        place.begin()
    assert place.fs.snapshot() == before


def test_a_point_that_a_listing_missed_because_it_was_just_put_is_found() -> None:
    place = Place()
    _, _, third, fourth = (place.grow() for _ in range(4))
    missed = [third]

    class Racing(DirectoryDestination):
        def names(self, prefix: str = "") -> Iterator[StoredFile]:
            hidden = missed.pop() if missed and prefix.startswith("points/") else "none"
            yield from (file for file in super().names(prefix) if hidden not in file.name)

    assert PointStore(Racing(place.fs, "/place")).at().id == fourth


# --- Whose place it is ------------------------------------------------------------------------------------------------


def test_a_place_of_another_is_refused() -> None:
    place = Place()
    place.grow()
    with pytest.raises(BackupError, match="has backups of another broker, of cluster cluster, where this one has c2"):
        PointWriter(place.destination, "c2", MINE)
    with pytest.raises(BackupError, match=r"is a restored copy. .* restore anew with --take-over, .*; .*, else name"):
        PointWriter(place.destination, CLUSTER, OTHER)
    for take_over in (False, True):
        with pytest.raises(BackupError, match=r"a broker backs up continuously into /place \(seglog.backup.to\): name"):
            BackupStore(place.destination).claim(CLUSTER, MINE, take_over=take_over)
    fs = ForgetfulFileSystem()
    fs.load({"/place/holidays.jpg": b"!"})
    with pytest.raises(BackupError, match=r"is not empty, and has no backup of seglog \(holidays.jpg is there\)"):
        Place(fs)
    with pytest.raises(BackupError, match=r"/nowhere is no backup of seglog: it has no seglog-backup.json"):
        PointStore(DirectoryDestination(fs, "/nowhere")).at()


def test_single_backups_of_the_same_directory_become_bases() -> None:
    fs = ForgetfulFileSystem()
    destination = DirectoryDestination(fs, "/place")
    BackupStore(destination).claim(CLUSTER, MINE, take_over=False)
    part = Part(f"{FILES}{id_at(START)}-000001", 0, 3, 0)
    destination.put(part.name, [b"abc"])
    entry = FileEntry("t-0/0.log", 3, 1, 2, (part,))
    old = Manifest(id_at(START), START, CLUSTER, MINE, "0.3", (entry,), ())
    BackupStore(destination).write(old)
    with pytest.raises(BackupError, match="has single backups, and no broker backs up into it: `seglogd backup` of"):
        PointStore(destination).take_over(OTHER, old.id)
    assert PointStore(destination).at() == State.of(old)
    place = Place(fs)
    assert read_marker(destination) == Marker(CLUSTER, MINE, 2)
    assert place.writer.state == State.of(old)
    place.grow()
    place.check()
    assert place.store.at(START) == State.of(old)


def test_a_marker_of_a_newer_version_or_that_makes_no_sense_is_refused() -> None:
    place = Place()
    sealed = Marker(CLUSTER, MINE, 3)
    place.destination.put(MARKER, [sealed.encode()])
    with pytest.raises(BackupError, match="/place is of version 3: use a newer seglogd"):
        place.store.at()
    place.destination.put(MARKER, [replace(sealed, version=2, epoch="one").encode()])  # type: ignore[arg-type]
    with pytest.raises(BackupError, match=r"/place/seglog-backup.json is not understood"):
        place.store.at()


# --- Taken over -------------------------------------------------------------------------------------------------------


class Unaware(DirectoryDestination):
    """The place as a writer saw it before it was taken over."""

    def __init__(self, fs: ForgetfulFileSystem) -> None:
        super().__init__(fs, "/place")
        self._seen = {MARKER: list(super().read(MARKER))}

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        if name == WRITER:
            self._seen[name] = list(chunks)
        else:
            super().put(name, chunks)

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        yield from self._seen[name] if name in self._seen else super().read(name, start, end)


def test_what_a_writer_adds_after_its_place_was_taken_over_counts_for_nothing() -> None:
    place = Place()
    *_, followed, late = (place.grow() for _ in range(4))
    unaware = Place(place.fs)
    unaware.now, unaware.writer = place.now, PointWriter(Unaware(place.fs), CLUSTER, MINE)
    place.store.take_over(OTHER, followed)
    del place.known[late]
    for attempt in (place.grow, lambda: list(place.writer.collect(place.now, 0))):
        with pytest.raises(TakenOverError, match="/place was taken over by another log directory: this broker"):
            attempt()
    unaware.grow()
    place.check()
    assert place.store.at().id == followed
    place.begin(OTHER)
    assert (place.writer.epoch, place.writer.state.id, place.writer.state.directory_id) == (1, followed, OTHER)
    for _ in range(2):
        unaware.grow()
        assert epoch_of(place.grow()) == 1
    place.check()
    place.store.take_over("third", max(place.known))
    place.begin("third")
    assert epoch_of(place.grow()) == 2
    place.check()
    marker = place.store.marker()
    assert [epoch for epoch, _ in marker.follows] == [1, 2]
    list(place.writer.collect(place.now, 0))
    assert [epoch for epoch, _ in place.store.take_over(OTHER, max(place.known)).follows] == [3]


ACTIONS = ["grow", "grow", "rewrite", "remove", "stale", "begin", "take over", "hour", "collect"]


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_any_history_keeps_each_moment_that_is_to_be_kept_and_its_files(actions: list[str]) -> None:
    place = Place()
    place.grow()
    stale: Place | None = None
    owner = MINE
    for action in actions:
        if action == "grow":
            place.grow(logs=(LogEntry("t", 0, "id", 0, place.now, ()),))
        elif action == "rewrite":
            place.grow(kept=1)
        elif action == "remove":
            place.grow("t-0/1.log", removed=("t-0/0.log",))
        elif action == "stale" and stale is not None:
            stale.now = place.now
            stale.grow(kept=1)
        elif action == "begin":
            place.put()  # what a killed one leaves
            place.begin(owner)
        elif action == "take over":
            stale = Place(place.fs, owner)
            stale.writer = PointWriter(Unaware(place.fs), CLUSTER, owner)
            owner = f"owner {place.now}"
            place.store.take_over(owner, place.writer.state.id)
            place.begin(owner)
        elif action == "hour":
            place.now += BASE_MS
        elif action == "collect":
            list(place.writer.collect(place.now, 2 * BASE_MS))
            first = place.store.bases()[0]
            assert ms_of(first) <= max(place.now - 2 * BASE_MS, ms_of(min(place.known)))
            place.known = {moment: state for moment, state in place.known.items() if time_of(moment) >= time_of(first)}
        place.check()


# --- Removed ----------------------------------------------------------------------------------------------------------


def test_what_no_moment_that_is_kept_needs_is_removed_and_nothing_else() -> None:
    place = Place()
    for turn in range(12):
        for _ in range(3):
            place.grow(kept=turn % 2)
        place.now += BASE_MS
    list(place.writer.collect(place.now, 5 * BASE_MS))
    first = place.store.bases()[0]
    assert ms_of(first) <= place.now - 5 * BASE_MS < ms_of(place.store.bases()[1])
    kept = {moment: state for moment, state in place.known.items() if moment >= first}
    place.check(kept)
    needed = {name for state in kept.values() for name in state.names}
    assert {file.name for file in place.destination.names(FILES)} == needed
    listed = {
        file.name.partition("/")[2].split("/")[0].removesuffix(".json") for file in place.destination.names("points/")
    }
    assert listed <= set(place.store.bases())
    before = list(place.destination.names())
    list(place.writer.collect(place.now, DAY_MS))
    assert list(place.destination.names()) == before


def test_moments_of_a_clock_that_was_ahead_are_told_instead_of_being_kept_for_ever_in_silence() -> None:
    place = Place()
    place.grow()
    place.now += 2 * DAY_MS
    place.grow()
    with pytest.raises(
        BackupError, match=r"/place has moments of a clock that was ahead .*: nothing is removed until then"
    ):
        list(place.writer.collect(START, DAY_MS))
    place.check()


def test_a_writer_adds_nothing_beside_a_later_one_of_a_copy_of_its_directory() -> None:
    place = Place()
    place.grow()
    first = place.writer
    place.begin()
    newest = place.grow()
    place.writer, second = first, place.writer
    with pytest.raises(TakenOverError, match="with a copy of this log directory"):
        place.grow()
    place.writer = second
    assert place.store.at().id == newest
    place.grow()


def test_what_somebody_has_removed_from_a_place_is_told_at_a_base_and_forgotten_by_the_next_writer() -> None:
    place = Place()
    place.grow()
    place.grow("t-0/1.log")
    [part] = place.writer.state.files["t-0/0.log"].parts
    place.destination.delete(part.name)
    with pytest.raises(LostFilesError, match=part.name):
        list(place.writer.collect(place.now, DAY_MS))
    place.begin()
    assert [*place.writer.state.files] == ["t-0/1.log"]
    moment = place.grow()
    list(place.writer.collect(place.now, DAY_MS))
    place.check({moment: place.known[moment]})


# --- Crashes ----------------------------------------------------------------------------------------------------------


@each_case("policy", [PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(4))])
def test_a_crash_at_any_operation_leaves_the_moment_before_or_the_one_after(policy: CrashPolicy) -> None:
    place = Place()
    place.grow()
    seen: dict[str, Manifest] = {}
    keep_ms = 2 * BASE_MS

    def look(*_operation: object) -> None:
        after = Place.__new__(Place)
        after.fs, after.now, after.known = place.fs.found_after(policy), place.now, {}
        newest = after.store.at()
        assert newest.id >= max(place.known), "everything published is there"
        seen[newest.id] = newest.manifest()
        after.check(
            seen | {moment: state for moment, state in place.known.items() if ms_of(moment) > place.now - keep_ms}
        )
        after.begin()
        after.grow()
        list(after.writer.collect(after.now, 0))
        assert {file.name for file in after.destination.names(FILES)} == set(after.store.at().manifest().names)
        after.check()

    place.fs.on_operation = look
    for turn in range(5):
        place.grow()
        place.grow("t-0/1.log", kept=turn % 2)
        place.now += BASE_MS
        seen.clear()
        list(place.writer.collect(place.now, keep_ms))
    place.fs.on_operation = None
    assert len(place.store.bases()) < len([moment for moment in place.known if moment.endswith("Z")]) // 2
