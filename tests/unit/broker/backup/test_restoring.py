"""A moment of a continuous backup restored: as after a kill at it, with nothing of later in it."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from seglog_broker.backup.commands import main_backup, main_restore, main_verify
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.finishing import NOT_OF_A_CUT
from seglog_broker.backup.points import PointStore, PointWriter, TakenOverError
from seglog_broker.backup.restoring import PRODUCER_IDS_SKIPPED, compare, restore
from seglog_broker.backup.store import Manifest
from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, ForgetfulFileSystem
from seglog_protocol.errors import LogDirectoryError
from tests.logs import ManualClock, append_one, batch, flip_bit, opened_directory, read_all
from tests.unit.broker.backup.cuts import publish_cut
from tests.unit.broker.storage.steps import create_topic

VALUE = b"." * 1_000
NEW_ID = "AAAAAAAAAAAAAAAAAAAAAA"
IDS_FILE = "seglog-producer-ids.json"


def config() -> BrokerConfig:
    return load_config(None, "", {}, ["log.dir=/data"])[0]


class Lost:
    """A disk with a log directory in use, whose moments go to a place."""

    def __init__(self, records: int, fs: FileSystem | None = None, root: str = "") -> None:
        self.fs = fs or ForgetfulFileSystem()
        self.clock = ManualClock()
        self.root = root
        self.directory: LogDirectory = opened_directory(self.fs, f"{root}/data", clock=self.clock)
        create_topic(self.directory, "t", 2, {"segment.bytes": "60000"})
        self.append(records)
        identity = self.directory.cluster_id, "directory"
        self.writer = PointWriter(self.destination, *identity)

    @property
    def destination(self) -> DirectoryDestination:
        return DirectoryDestination(self.fs, f"{self.root}/place")

    def append(self, count: int) -> None:
        for number in range(count):
            append_one(self.directory.logs["t", number % 2], batch(VALUE, timestamp=1000))

    def manifest(self) -> Manifest:
        return PointStore(self.destination).at().manifest()

    def restored(self, manifest: Manifest | None = None) -> list[str]:
        manifest = manifest or self.manifest()
        restore(self.fs, manifest, self.destination, "/restored", NEW_ID)
        return compare(self.fs, self.clock, config(), "/restored", manifest, lambda _size: None)

    def go_on(self) -> None:
        """What a broker does between a moment and when its files are read."""
        self.append(150)
        for log in self.directory.logs.values():
            log.state.held_end = log.log_end_offset
            log.truncate_before(log.log_start_offset + 2)


def test_what_is_restored_is_the_moment_and_nothing_of_later() -> None:
    lost = Lost(200)
    for log in lost.directory.logs.values():
        log.truncate_before(3)
    starts_and_ends = {key: (log.log_start_offset, log.log_end_offset) for key, log in lost.directory.logs.items()}
    epochs = {key: log.leader_epoch for key, log in lost.directory.logs.items()}
    publish_cut(lost.fs, lost.directory, lost.writer, lost.clock.now, lost.go_on)
    manifest = lost.manifest()
    assert not any(file.path in NOT_OF_A_CUT for file in manifest.files)
    restore(lost.fs, manifest, lost.destination, "/restored", NEW_ID)
    again = opened_directory(lost.fs, "/restored", clock=lost.clock)
    assert not again.report.clean, "as after a kill"
    assert again.report.problems == []
    assert {key: (log.log_start_offset, log.log_end_offset) for key, log in again.logs.items()} == starts_and_ends
    assert all(log.leader_epoch > epochs[key] for key, log in again.logs.items())
    assert [len(read_all(log, 3)) for log in again.logs.values()] == [97, 97]
    assert again.cluster_id == lost.directory.cluster_id
    starts = lost.fs.snapshot()["/restored/log-start-offset-checkpoint"]  # type: ignore[attr-defined]
    assert starts == b"0\n2\nt 0 3\nt 1 3\n", "Kafka's, too"
    assert f"directory.id={NEW_ID}\n".encode() in lost.fs.snapshot()["/restored/meta.properties"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", [0, 5_000])
def test_producer_ids_that_the_lost_machine_may_have_given_are_skipped(before: int) -> None:
    lost = Lost(2)
    if before:
        ids = lost.directory.producer_ids
        ids.note_seen(before - 1_001)
        ids.next_block().run()
    publish_cut(lost.fs, lost.directory, lost.writer, lost.clock.now)
    lost.restored()
    assert json.loads(lost.fs.snapshot()[f"/restored/{IDS_FILE}"])["next"] == before + PRODUCER_IDS_SKIPPED  # type: ignore[attr-defined]


def test_checkpoints_and_markers_of_a_stop_are_not_restored_though_a_single_backup_had_them() -> None:
    lost = Lost(10)
    publish_cut(lost.fs, lost.directory, lost.writer, lost.clock.now)
    manifest = lost.manifest()
    stray = [manifest.files[0]._replace(path=path) for path in NOT_OF_A_CUT]
    assert lost.restored(replace(manifest, files=(*manifest.files, *stray))) == []


def test_a_moment_that_cannot_be_read_as_it_was_is_told() -> None:
    lost = Lost(200)
    path = "/data/t-0/00000000000000000000.log"
    flip_bit(lost.fs, path, 700)
    publish_cut(lost.fs, lost.directory, lost.writer, lost.clock.now)
    manifest = lost.manifest()
    first, second = manifest.logs
    differences = lost.restored(replace(manifest, logs=(first, second._replace(log_end=101))))
    assert len(differences) == 2
    assert differences[0].startswith("t-0: segment 0 has 1,")
    assert differences[0].endswith("bytes that are no record batch")
    assert differences[1] == "t-1: the log ends at offset 100, in the backup at 101"


def test_a_crash_at_any_operation_leaves_a_whole_directory_or_one_that_no_start_takes() -> None:
    lost = Lost(40)
    publish_cut(lost.fs, lost.directory, lost.writer, lost.clock.now, lost.go_on)
    manifest = lost.manifest()
    number = 0

    def crash(*_operation: object) -> None:
        nonlocal number
        number += 1
        fs = lost.fs.found_after((PROCESS_KILL, POWER_LOSS, RANDOM(number))[number % 3])  # type: ignore[attr-defined]
        if "seglog-format" not in (fs.list_directory("/restored") if fs.exists("/restored") else []):
            return
        try:
            directory = opened_directory(fs, "/restored", clock=lost.clock)
        except LogDirectoryError as error:
            assert "a restore into /restored was not finished" in error.message  # noqa: PT017 - or none is raised
            return
        assert sum(log.log_end_offset for log in directory.logs.values()) == 40

    lost.fs.on_operation = crash  # type: ignore[attr-defined]
    restore(lost.fs, manifest, lost.destination, "/restored", NEW_ID)
    lost.fs.on_operation = None  # type: ignore[attr-defined]
    assert number > 20


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    """Three moments, ten seconds apart, of a directory of files, with 2, 4 and 6 records."""
    monkeypatch.setattr(os, "nice", lambda _more: 0)
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    lost = Lost(0, PosixFileSystem(), str(tmp_path))
    for number in range(3):
        lost.append(2)
        publish_cut(lost.fs, lost.directory, lost.writer, NOON + number * 10_000)
    lost.directory.abandon()
    return lost


NOON = 1_795_867_200_000
"""2026-11-28T12:00Z, which is 14:00 where the tests are."""


@pytest.mark.parametrize(
    ("until", "records"),
    [
        ("2026-11-28T14:00", 2),
        ("2026-11-28T12:00:09.999Z", 2),
        ("2026-11-28T14:00:10", 4),
        ("2026-11-28T13:00:19+01:00", 4),
        ("2126-11-28", 6),
        (None, 6),
    ],
)
def test_what_is_restored_is_at_most_the_moment_that_is_asked_for(
    lost: Lost, until: str | None, records: int, capfd: pytest.CaptureFixture[str]
) -> None:
    place, given = f"{lost.root}/place", [] if until is None else ["--until", until]
    assert main_restore([place, "--to", f"{lost.root}/restored", *given]) == 0
    moment = f"20261128T1200{(records - 2) * 5:02}.000Z"
    assert f"is the log directory of {moment}: up to {records} records of 2 partitions" in capfd.readouterr().out
    directory = opened_directory(lost.fs, f"{lost.root}/restored", clock=lost.clock)
    assert sum(log.log_end_offset for log in directory.logs.values()) == records
    directory.abandon()
    assert main_verify([place, *given]) == 0
    assert f"{moment} is sound: up to {records} records" in capfd.readouterr().out


def test_a_time_that_is_none_or_before_the_first_moment_is_told(lost: Lost, capfd: pytest.CaptureFixture[str]) -> None:
    place = f"{lost.root}/place"
    for wrong in ("yesterday", "2026-13-01", "14:00"):
        with pytest.raises(SystemExit) as caught:
            main_verify([place, "--until", wrong])
        assert caught.value.code == 2
        assert f"'{wrong}' is no time: write 2026-11-28T14:00, by the clock of this machine" in capfd.readouterr().err
    assert main_verify([place, "--until", "2026-11-28T13:59"]) == 1
    assert "place has nothing of that time: the first moment that it has is 20261128T120000" in capfd.readouterr().err


def test_the_list_names_bases_and_how_many_moments_follow_each(lost: Lost, capfd: pytest.CaptureFixture[str]) -> None:
    assert main_restore([f"{lost.root}/place", "--list"]) == 0
    [line] = capfd.readouterr().out.splitlines()
    first, *_, last = line.split("\t")
    assert (first, last) == ("20261128T120000.000Z", "3 moments until 20261128T120020.000Z")


def test_a_restored_directory_takes_the_place_over(lost: Lost, capfd: pytest.CaptureFixture[str]) -> None:
    place = f"{lost.root}/place"
    assert main_backup([f"{lost.root}/data", "--to", place]) == 1
    assert f"a broker backs up continuously into {place}" in capfd.readouterr().err
    restoring = [place, "--until", "2026-11-28T12:00:15Z", "--take-over", "--to"]
    assert main_restore([*restoring, f"{lost.root}/restored"]) == 0
    store = PointStore(lost.destination)
    marker = store.marker()
    assert (marker.epoch, marker.follows) == (1, ((1, "20261128T120010.000Z"),))
    properties = Path(f"{lost.root}/restored/meta.properties").read_text()
    assert f"directory.id={marker.directory_id}\n" in properties
    assert store.at().id == "20261128T120010.000Z"
    with pytest.raises(TakenOverError):
        publish_cut(lost.fs, opened_directory(lost.fs, f"{lost.root}/data"), lost.writer, NOON + 60_000)


def test_a_place_of_single_backups_is_not_taken_over_by_a_restore_and_nothing_is_restored(
    lost: Lost, capfd: pytest.CaptureFixture[str]
) -> None:
    single = f"{lost.root}/single"
    assert main_backup([f"{lost.root}/data", "--to", single]) == 0
    assert main_restore([single, "--to", f"{lost.root}/restored", "--take-over"]) == 1
    assert f"{single} has single backups, and no broker backs up into it" in capfd.readouterr().err
    assert not Path(f"{lost.root}/restored").exists()
    assert main_restore([single, "--to", f"{lost.root}/restored", "--until", "2999-01-01"]) == 0
    assert "6 records of 2 partitions" in capfd.readouterr().out
