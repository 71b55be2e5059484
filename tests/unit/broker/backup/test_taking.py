"""Backups taken, restored, compared and removed, on a disk in memory; and a crash at every operation of that."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from seglog_broker.backup.destination import DestinationError, StoredFile
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.restoring import PRODUCER_IDS_SKIPPED, compare, restore
from seglog_broker.backup.source import open_source
from seglog_broker.backup.store import BackupError, BackupStore, Manifest, decode_manifest, read_manifest
from seglog_broker.backup.taking import take_backup
from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.identity import is_behind
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, Fault, ForgetfulFileSystem
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from seglog_protocol.errors import LogDirectoryError
from tests.logs import ManualClock, append_one, batch, cut_file, flip_bit, opened_directory
from tests.unit.broker.storage.steps import create_topic

SEGMENT_BYTES = 60_000
SETTINGS = {"segment.bytes": str(SEGMENT_BYTES)}
VALUE = b"." * 1_000
NEW_ID = "AAAAAAAAAAAAAAAAAAAAAA"
HOUR_MS = 3_600_000


def config() -> BrokerConfig:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return config


class Disk:
    """A disk with a log directory of one topic and a place for backups; ``written`` are the records."""

    def __init__(self, records: int = 0) -> None:
        self.fs = ForgetfulFileSystem()
        self.clock = ManualClock()
        self.records = 0
        directory = self.opened()
        create_topic(directory, "t", 2, dict(SETTINGS))
        assert directory.close() == []
        self.append(records)

    def append(self, count: int) -> None:
        directory = self.opened()
        for number in range(count):
            append_one(directory.logs["t", number % 2], batch(VALUE, timestamp=1000))
        assert directory.close() == []
        self.records += count

    def expire(self) -> None:
        """Retention takes the oldest segment of each partition."""
        directory = self.opened()
        for log in directory.logs.values():
            doomed = log.truncation.drop_oldest(1)
            doomed.set_aside()
            doomed.remove()
        assert directory.close() == []

    def opened(self, path: str = "/data") -> LogDirectory:
        return opened_directory(self.fs, path, clock=self.clock)

    @property
    def destination(self) -> DirectoryDestination:
        return DirectoryDestination(self.fs, "/backups")

    @property
    def store(self) -> BackupStore:
        return BackupStore(self.destination)

    def take(self, *, keep: int | None = None, take_over: bool = False, path: str = "/data") -> Manifest:
        self.clock.now += HOUR_MS
        with open_source(self.fs, self.clock, path, config()) as source:
            return take_backup(self.fs, source, self.store, self.clock.now, take_over=take_over, keep=keep)[0]

    def restored(self, manifest: Manifest, path: str = "/restored") -> list[str]:
        """Restore a backup; the differences."""
        restore(self.fs, manifest, self.destination, path, NEW_ID)
        return compare(self.fs, self.clock, config(), path, manifest, lambda _size: None)


def backed_up(records: int) -> tuple[Disk, Manifest]:
    """A disk with so many records, and a backup of them."""
    disk = Disk(records)
    return disk, disk.take()


def new_bytes(manifest: Manifest) -> int:
    return sum(part.size for file in manifest.files for part in file.parts if manifest.id in part.name)


def test_a_restored_backup_has_every_record_and_takes_more() -> None:
    disk, manifest = backed_up(200)
    assert manifest.records == 200
    assert len(manifest.logs[0].segments) > 1
    assert disk.restored(manifest) == []
    again = disk.opened("/restored")
    assert again.report.clean
    assert again.cluster_id == manifest.cluster_id
    assert sum(log.log_end_offset for log in again.logs.values()) == 200
    assert is_behind(disk.fs, "/restored"), "its clients may have gone on from there"
    assert again.producer_ids.next_id == PRODUCER_IDS_SKIPPED


def test_permissions_and_quotas_are_in_a_backup() -> None:
    disk = Disk(2)
    rule = Rule(Kind.TOPIC, PatternType.LITERAL, "t", "User:ada", "*", Operation.READ, Permission.ALLOW)
    AclStore(disk.fs, "/data/seglog-acls.json").change([rule])
    quotas = DynamicConfig(clients={(("user", "ada"),): {"producer_byte_rate": 9.0}})
    write_file_atomically(disk.fs, "/data/seglog-configs.json", encode_dynamic_configs(quotas))
    disk.restored(disk.take())
    again = disk.opened("/restored")
    assert list(again.acls.rules) == [rule]
    assert again.dynamic_config == quotas


def test_a_second_backup_copies_what_is_new_and_an_older_one_can_still_be_restored() -> None:
    disk, first = backed_up(300)
    disk.append(20)
    second = disk.take()
    assert new_bytes(first) > 300 * len(VALUE)
    assert new_bytes(second) < 20 * len(VALUE) + 20_000
    assert disk.restored(first, "/one") == []
    assert disk.restored(second, "/two") == []
    assert (first.records, second.records) == (300, 320)
    assert disk.store.ids() == [second.id, first.id]


def test_a_log_that_has_grown_is_copied_anew_where_its_beginning_is_another() -> None:
    disk, first = backed_up(80)
    path = "/data/t-0/00000000000000000000.log"
    flip_bit(disk.fs, path, 500)
    disk.append(10)
    second = disk.take()
    assert any("no record batch" in problem for problem in second.problems)
    parts = next(file.parts for file in second.files if f"/data/{file.path}" == path)
    assert all(second.id in part.name for part in parts)
    assert disk.restored(first) == []


def test_older_backups_are_removed_with_what_they_alone_need() -> None:
    disk = Disk()
    manifests = []
    for number in range(6):
        disk.append(60)
        if number == 4:
            disk.expire()
        manifests.append(disk.take(keep=2))
    assert disk.store.ids() == [manifests[-1].id, manifests[-2].id]
    kept = {file.name for file in disk.destination.names("files/")}
    assert kept == {*manifests[-1].names, *manifests[-2].names}
    assert disk.restored(manifests[-2], "/one") == []
    assert disk.restored(manifests[-1], "/two") == []


def test_a_file_of_the_backup_that_has_changed_is_found_out_and_named() -> None:
    disk, manifest = backed_up(100)
    name = max(disk.destination.names("files/"), key=lambda file: file.size).name
    flip_bit(disk.fs, f"/backups/{name}", 700)
    with pytest.raises(BackupError, match=f"{name} is damaged"):
        disk.restored(manifest)
    with pytest.raises(LogDirectoryError, match="a restore into /restored was not finished"):
        disk.opened("/restored")


def test_records_that_differ_from_those_that_were_counted_are_named() -> None:
    disk, manifest = backed_up(100)
    first, *others = manifest.logs
    segment, *more = first.segments
    wrong = first._replace(segments=(segment._replace(records=segment.records + 1), *more))
    differences = disk.restored(replace(manifest, logs=(wrong, *others)))
    assert len(differences) == 1
    assert differences[0].startswith("t-0: segment 0 has")


def test_a_directory_that_is_not_empty_is_not_overwritten() -> None:
    disk, manifest = backed_up(10)
    before = disk.fs.snapshot()
    with pytest.raises(BackupError, match=r"/data is not empty"):
        disk.restored(manifest, "/data")
    assert disk.fs.snapshot() == before


def test_a_disk_without_room_for_the_backup_is_refused_before_anything_is_written() -> None:
    disk, manifest = backed_up(10)
    disk.fs.limit_free_bytes(1_000_000)
    with pytest.raises(BackupError, match="there is room for"):
        disk.restored(manifest)
    assert not disk.fs.exists("/restored")


def names_and_sizes(disk: Disk) -> list[StoredFile]:
    return list(disk.destination.names())


def test_a_damaged_manifest_is_named_and_nothing_is_removed_or_added_until_it_is_moved_away() -> None:
    disk, first = backed_up(100)
    disk.append(100)
    second = disk.take()
    path = f"/backups/backups/{first.id}.json"
    cut_file(disk.fs, path, 100)
    before = names_and_sizes(disk)
    with pytest.raises(BackupError, match=f"{first.id}.json is damaged: .*: move that file away"):
        disk.take(keep=1)
    assert names_and_sizes(disk) == before
    assert disk.restored(read_manifest(disk.destination, second.id)) == []
    assert read_manifest(disk.destination, second.id) == second
    disk.fs.unlink(path)
    third = disk.take()
    assert {file.name for file in disk.destination.names("files/")} == {*second.names, *third.names}


def test_a_place_with_other_files_or_of_another_broker_is_refused() -> None:
    disk, other = Disk(), Disk()
    disk.fs.load({"/backups/holidays.jpg": b"!"})
    with pytest.raises(BackupError, match=r"is not empty, and has no backup of seglog \(holidays.jpg is there\)"):
        disk.take()
    other.take()
    for path, content in disk.fs.snapshot().items():
        if path.startswith("/data/") and not path.endswith("/"):
            other.fs.load({path.replace("/data", "/other"): content})
    with pytest.raises(BackupError, match="of another broker, of cluster"):
        other.take(path="/other")


def test_a_restored_copy_beside_the_original_does_not_continue_its_backups_unless_told_to() -> None:
    disk = Disk(100)
    assert disk.restored(disk.take()) == []
    with pytest.raises(BackupError, match="one of them is a restored copy"):
        disk.take(path="/restored")
    disk.take()
    manifest = disk.take(path="/restored", take_over=True)
    assert manifest.directory_id == NEW_ID
    with pytest.raises(BackupError, match="one of them is a restored copy"):
        disk.take()


def test_a_backup_of_a_directory_whose_broker_was_killed_opens_without_a_recovery() -> None:
    disk = Disk()
    directory = disk.opened()
    for _ in range(50):
        append_one(directory.logs["t", 0], batch(VALUE, timestamp=1000))
    directory.abandon()
    manifest = disk.take()
    assert manifest.records == 50
    assert disk.restored(manifest) == []


def test_a_broker_starts_while_a_backup_of_its_directory_is_copied_which_it_leaves() -> None:
    disk = Disk(200)
    with open_source(disk.fs, disk.clock, "/data", config()) as source:
        directory = disk.opened()
        assert directory.report.deleted_directories == []
        assert directory.close() == []
        disk.append(100)
        manifest, _ = take_backup(disk.fs, source, disk.store, disk.clock.now)
        after = disk.fs.found_after(PROCESS_KILL)
    assert manifest.records == 200
    assert disk.restored(manifest) == []
    assert not disk.fs.exists(source.path)
    assert source.path in opened_directory(after).report.deleted_directories


def test_a_directory_stays_locked_while_it_is_copied_where_files_have_no_second_names() -> None:
    disk = Disk(20)
    disk.fs.inject(Fault("link", lambda _path: True, errno.EPERM, sticky=True))
    with open_source(disk.fs, disk.clock, "/data", config()) as source:
        with pytest.raises(LogDirectoryError, match="/data is in use by"):
            disk.append(1)
        assert take_backup(disk.fs, source, disk.store, disk.clock.now)[0].records == 20
    disk.append(1)


def test_a_clock_that_was_set_back_does_not_change_the_order_of_backups() -> None:
    disk = Disk()
    first = disk.take()
    disk.clock.now -= 100 * HOUR_MS
    second = disk.take()
    assert disk.store.ids() == [second.id, first.id]


def test_a_manifest_is_read_back_and_one_that_leads_out_of_a_directory_is_refused() -> None:
    manifest = Disk(30).take()
    assert decode_manifest(manifest.encode(), "it") == manifest
    strange = replace(manifest, files=(manifest.files[0]._replace(path="../../etc/passwd"),))
    with pytest.raises(BackupError, match="is not possible"):
        decode_manifest(strange.encode(), "it")
    with pytest.raises(BackupError, match="is damaged"):
        decode_manifest(manifest.encode().replace(b'"records"', b'"Records"').replace(b"t-0/", b"t-1/"), "it")


# --- Crashes ----------------------------------------------------------------------------------------------------------


def at_every_operation(disk: Disk, work: Callable[[], object], look: Callable[[Disk], None]) -> None:
    """Do ``work``; before each of its operations ``look`` at what a crash at this point would leave."""
    number = 0

    def crash(*_operation: object) -> None:
        nonlocal number
        number += 1
        policy = (PROCESS_KILL, POWER_LOSS, RANDOM(number))[number % 3]
        after = Disk.__new__(Disk)
        after.fs, after.clock, after.records = disk.fs.found_after(policy), disk.clock, disk.records
        look(after)

    disk.fs.on_operation = crash
    try:
        work()
    finally:
        disk.fs.on_operation = None
    assert number > 20


def test_a_crash_at_any_operation_of_a_backup_leaves_only_whole_backups_and_no_obstacle() -> None:
    disk, first = backed_up(100)
    disk.append(60)

    def look(after: Disk) -> None:
        ids = after.store.ids()
        assert ids
        assert first.id in ids or len(ids) == 1
        assert after.restored(read_manifest(after.destination, ids[0]), "/after") == []
        manifest = after.take(keep=1)  # the next one works, and removes what was left
        assert {file.name for file in after.destination.names("files/")} == set(manifest.names)

    at_every_operation(disk, lambda: disk.take(keep=1), look)


def test_a_crash_at_any_operation_of_the_first_backup_leaves_none_or_a_whole_one() -> None:
    disk = Disk(40)

    def look(after: Disk) -> None:
        try:
            ids = after.store.ids()
        except BackupError:
            ids = []
        for backup in ids:
            assert after.restored(read_manifest(after.destination, backup), "/after") == []
        assert after.take().records == 40

    at_every_operation(disk, disk.take, look)


def test_a_crash_at_any_operation_of_a_restore_leaves_a_whole_directory_or_one_that_no_start_takes() -> None:
    disk, manifest = backed_up(40)

    def look(after: Disk) -> None:
        there = after.fs.list_directory("/restored") if after.fs.exists("/restored") else []
        if there in ([], ["seglog-format.tmp"]):
            assert after.restored(manifest) == []
            return
        try:
            directory = after.opened("/restored")
        except LogDirectoryError as error:
            assert "a restore into /restored was not finished" in error.message  # noqa: PT017 - or none is raised
            return
        assert sum(log.log_end_offset for log in directory.logs.values()) == 40
        assert directory.report.clean

    at_every_operation(disk, lambda: restore(disk.fs, manifest, disk.destination, "/restored", NEW_ID), look)


def test_a_full_disk_while_a_backup_is_taken_leaves_the_last_one_and_says_so() -> None:
    disk, first = backed_up(100)
    disk.append(100)
    disk.fs.limit_free_bytes(50_000)
    with pytest.raises((DestinationError, BackupError), match="make room there"):
        disk.take()
    assert disk.store.ids() == [first.id]
    disk.fs.limit_free_bytes(None)
    assert disk.restored(disk.take()) == []
