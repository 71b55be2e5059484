"""A year of daily backups of a log directory that changes, of which the last few are kept."""

from typing import Final

import pytest

from seglog_broker.backup.manifest import Manifest
from tests.logs import append_one, batch
from tests.unit.broker.backup.test_taking import SETTINGS, VALUE, Disk, new_bytes

DAYS: Final = 365
DAY_MS: Final = 24 * 3_600_000
KEEP: Final = 14
RECORDS_A_DAY: Final = 20
RECORDS_KEPT: Final = 150
"""Of each of the two partitions: what retention leaves."""
PARTITIONS: Final = 2
SPACE_MAX: Final = 1_000_000
"""Of the backups: the log has up to 460,000 bytes, and two weeks bring 300,000, and once a topic of 20,000."""


def a_day(disk: Disk, day: int) -> None:
    """Records come, the oldest expire, and a topic of a day is made anew each month."""
    disk.clock.now += DAY_MS
    directory = disk.opened()
    value = b"%08d" % day * (len(VALUE) // 8)
    for number in range(RECORDS_A_DAY):
        append_one(directory.logs["t", number % PARTITIONS], batch(value, timestamp=disk.clock.now))
    for number in range(PARTITIONS):
        log = directory.logs["t", number]
        log.truncate_before(max(log.log_start_offset, log.log_end_offset - RECORDS_KEPT))
        below = [base for base in log.segments.bases[1:] if base <= log.log_start_offset]
        if below:
            expired = log.truncation.drop_oldest(len(below))
            expired.set_aside()
            expired.remove()
    if day % 30 == 0:
        if (old := directory.registry.topics.get("monthly")) is not None:
            directory.topics.delete_topic(old)
        directory.topics.create_topic("monthly", 1, dict(SETTINGS))
        append_one(directory.logs["monthly", 0], batch(value * 20, timestamp=disk.clock.now))
    assert directory.close() == []


@pytest.mark.soak
def test_a_year_of_daily_backups_takes_the_space_of_the_last_two_weeks_and_each_of_them_can_be_restored() -> None:
    disk = Disk()
    taken: list[Manifest] = []
    for day in range(DAYS):
        a_day(disk, day)
        taken.append(disk.take(keep=KEEP))
        assert disk.store.ids() == [manifest.id for manifest in reversed(taken[-KEEP:])]
        files = list(disk.destination.names("files/"))
        assert {file.name for file in files} == {name for manifest in taken[-KEEP:] for name in manifest.names}
        oldest, *later = taken[-KEEP:]
        space = sum(file.size for file in files)
        assert space <= oldest.size + sum(map(new_bytes, later)), "what is not in the oldest one came after it"
        assert space < SPACE_MAX
        if day > RECORDS_KEPT:
            assert new_bytes(taken[-1]) < taken[-1].size / 2, "most of it is in earlier backups"
    for number, manifest in enumerate(taken[-KEEP:]):
        assert disk.restored(manifest, f"/restored-{number}") == []
    assert disk.restored(taken[-KEEP], "/oldest") == []
