"""A standby that follows a place and is promoted, step by step, with a crash at each, on a disk in memory."""

import errno
from dataclasses import replace

import pytest

from seglog_broker.backup.destination import MARKER, DestinationError
from seglog_broker.backup.lease import forget_leases, run
from seglog_broker.backup.points import PointWriter
from seglog_broker.backup.promoting import NotPromotedError, Standby
from seglog_broker.backup.standby_directory import PLAN_FILE
from seglog_broker.testing.forgetful import PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_protocol.errors import LogDirectoryError
from tests.unit.broker.backup.machines import LEASE_MS, Machines


def double(machines: Machines) -> ForgetfulFileSystem:
    assert isinstance(machines.fs, ForgetfulFileSystem)
    return machines.fs


def test_a_standby_follows_each_point_also_after_a_start_and_tells_how_far_it_is() -> None:
    machines = Machines(ForgetfulFileSystem())
    for _ in range(2):
        standby = machines.standby()
        assert (standby.status.applied_ms, standby.status.lag_ms) == (0, None)
        for _ in range(2):
            point = machines.publish(2)
            standby.follow()
            assert standby.status.applied == standby.status.newest == point
            assert standby.status.lag_ms == 0
        assert standby.status.received > 0


def test_a_promotion_waits_for_the_lease_applies_the_newest_point_and_makes_the_place_its_own() -> None:
    machines = Machines(ForgetfulFileSystem())
    first = machines.hold_lease()
    standby = machines.standby()
    standby.follow()
    point = machines.publish(4)
    began = machines.boottime
    machines.promoted(standby)
    assert machines.boottime - began >= LEASE_MS * 1_100_000
    assert machines.boottime > first.until_ns
    assert machines.told[0].startswith("waiting 11.0 s: the lease of one.example")
    assert any("the newest point is of 2023-11-14 22:13:20" in said for said in machines.told)
    marker = machines.store.marker()
    assert marker.epoch == 1
    assert marker.follows == ((1, point),)
    assert machines.identity_of("/standby")["directory.id"] == marker.directory_id
    assert machines.records_served() == machines.records == 7
    assert not any(
        name.startswith(("seglog-standby", "seglog-promote")) for name in machines.fs.list_directory("/standby")
    )
    assert machines.standby().serves_already()
    waited = machines.boottime
    broker = machines.lease("broker", directory_id=marker.directory_id, epoch=1)
    run(broker.acquire(), machines.destination, lambda until: machines.sleep(until / 1e9))
    assert machines.boottime == waited  # nobody else had it


def test_a_kill_at_any_operation_of_a_promotion_is_gone_on_from_and_there_is_one_owner() -> None:
    machines = Machines(ForgetfulFileSystem())
    machines.hold_lease()
    standby = machines.standby()
    standby.follow()
    machines.publish(2)
    kills = 0

    def look(*_operation: object) -> None:
        nonlocal kills
        kills += 1
        after = Machines(double(machines).found_after(PROCESS_KILL), boottime=machines.boottime)
        again = after.standby()
        if not again.serves_already():
            assert machines.records >= 3
            after.promoted(again)
        marker = after.store.marker()
        assert marker.epoch == 1
        assert after.identity_of("/standby")["directory.id"] == marker.directory_id
        assert after.records_served() == 5

    double(machines).on_operation = look
    machines.promoted(standby)
    double(machines).on_operation = None
    assert kills > 30


def test_a_promotion_that_was_begun_is_given_up_where_another_machine_was_promoted_meanwhile() -> None:
    machines = Machines(ForgetfulFileSystem())
    machines.hold_lease()
    standby = machines.standby()
    standby.follow()
    double(machines).inject(
        Fault("write", lambda path: path.startswith("/place/seglog-backup"), errno.EIO, sticky=True)
    )
    double(machines).inject(
        Fault("pwritev", lambda path: path.startswith("/place/seglog-backup"), errno.EIO, sticky=True)
    )
    with pytest.raises(DestinationError):
        machines.promoted(standby)
    double(machines).heal()
    assert standby.is_promoting
    other = machines.store.take_over("other", standby.status.applied)
    machines.writer = PointWriter(machines.destination, other.cluster_id, "other")
    machines.publish(1)
    with pytest.raises(
        NotPromotedError, match="taken over by the log directory other meanwhile: this standby follows on"
    ):
        machines.promoted(standby)
    assert not standby.is_promoting
    standby.follow()
    assert standby.status.applied == machines.writer.state.id
    machines.promoted(standby)
    assert machines.store.marker().epoch == 2
    assert machines.records_served() == 4


def test_of_two_standbys_that_are_promoted_at_once_one_is() -> None:
    machines = Machines(ForgetfulFileSystem())
    machines.hold_lease()
    taken: list[None] = []

    def another(seconds: float) -> None:
        if not taken:
            taken.append(None)
            rival = machines.lease("rival", directory_id="r", epoch=1)
            run(rival.acquire(take_over=True), machines.destination, lambda until: machines.sleep(until / 1e9))
        machines.sleep(seconds)

    standby = Standby(machines.fs, machines.config, now=lambda: machines.boottime, sleep=another)
    standby.follow()
    with pytest.raises(NotPromotedError, match=r"r on one.example.*: this standby follows on"):
        machines.promoted(standby)
    assert machines.store.marker().epoch == 0
    assert not standby.is_promoting


def test_a_promotion_is_refused_before_anything_is_begun() -> None:
    machines = Machines(ForgetfulFileSystem())
    without = replace(machines.config, seglog_backup_lease_ms=0)
    with pytest.raises(
        NotPromotedError, match=r"so nothing here knows that it acknowledges no more: .* --without-lease"
    ):
        machines.promoted(machines.standby(without))
    assert not machines.fs.exists(f"/standby/{PLAN_FILE}")
    marker = machines.store.marker()
    machines.destination.put(MARKER, [replace(marker, version=1).encode()])
    with pytest.raises(NotPromotedError, match="which has single backups"):
        machines.promoted(machines.standby(without), without_lease=True)
    machines.destination.put(MARKER, [marker.encode()])
    machines.hold_lease()
    with pytest.raises(NotPromotedError, match=r"set .* as it is there"):
        machines.promoted(machines.standby(without))
    assert machines.store.marker().epoch == 0


def test_a_promotion_without_a_lease_waits_for_nothing_and_makes_the_first_directory_no_standbys() -> None:
    machines = Machines(ForgetfulFileSystem())
    began = machines.boottime
    machines.promoted(machines.standby(replace(machines.config, seglog_backup_lease_ms=0)), without_lease=True)
    assert machines.boottime == began
    assert machines.records_served() == 3
    with pytest.raises(LogDirectoryError, match="is a log directory of its own"):
        Standby(machines.fs, replace(machines.config, log_dir="/data")).serves_already()


def test_a_lease_of_a_first_machine_that_has_none_any_more_is_not_trusted() -> None:
    machines = Machines(ForgetfulFileSystem())
    machines.hold_lease()
    forget_leases(machines.destination)
    with pytest.raises(NotPromotedError, match="no lease in the place"):
        machines.promoted()
