"""Crashes before and during a recovery in worker processes: the directory after each of them.

As in ``test_crash_points``, but partitions are recovered one by one as worker processes do it, and taken into service.
The next crash comes at each file operation of that; in `make test` at some of them.
"""

import pytest

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.log.recovery_job import recover_partition
from seglog_broker.testing import forgetful
from tests.logs import ManualClock, append_one, batch
from tests.unit.simulation.crashes import crash_points
from tests.unit.simulation.test_crash_points import Promises, Scenario, Shortening, check, config, write_checkpoints


def _opened_behind(fs: forgetful.ForgetfulFileSystem) -> LogDirectory:
    """Open the directory, and recover and serve its partitions as worker processes would."""
    directory = open_log_directory(fs, ManualClock(), config(), "/data", in_line_bytes=0)
    for key, job in list(directory.recovering.items()):
        directory.finish_recovery(key, recover_partition(fs, ManualClock(), job))
        write_checkpoints(fs, directory)
    return directory


@pytest.mark.parametrize(
    ("policy", "kept", "every"),
    [
        pytest.param(forgetful.POWER_LOSS, False, 11, id="power loss, every eleventh"),
        pytest.param(forgetful.PROCESS_KILL, True, 1, id="process kill", marks=pytest.mark.soak),
        pytest.param(forgetful.POWER_LOSS, False, 1, id="power loss", marks=pytest.mark.soak),
        pytest.param(forgetful.RANDOM(7), False, 1, id="random", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("kind", [Scenario, pytest.param(Shortening, marks=pytest.mark.soak)])
def test_any_state_after_a_crash_is_also_recovered_while_the_broker_serves(
    kind: type[Scenario], policy: forgetful.CrashPolicy, kept: bool, every: int
) -> None:
    fs = forgetful.ForgetfulFileSystem()
    scenario = kind(fs)
    recovered = 0

    def opened(found: forgetful.ForgetfulFileSystem) -> LogDirectory:
        nonlocal recovered
        directory = _opened_behind(found)
        recovered += not directory.report.clean
        return directory

    with crash_points(fs, lambda: check(fs.found_after(policy), scenario.promises, kept=kept, opened=opened), every):
        scenario.run()
    assert recovered > 100 // every


class _ComeFarEnoughError(Exception):
    """Ends the scenario at the wanted step."""


def _left_by(kind: type[Scenario], after: int) -> tuple[forgetful.ForgetfulFileSystem, Promises]:
    """The disk after a kill before operation ``after``, with unsynced bytes still unsynced."""
    fs = forgetful.ForgetfulFileSystem()
    scenario = kind(fs)

    def stop_here(operation: forgetful.Operation) -> None:
        if operation.number >= after:
            raise _ComeFarEnoughError

    fs.on_operation = stop_here
    with pytest.raises(_ComeFarEnoughError):
        scenario.run()
    fs.on_operation = None
    return fs.found_after(forgetful.PROCESS_KILL), scenario.promises


@pytest.mark.parametrize(
    "policy",
    [forgetful.PROCESS_KILL, forgetful.POWER_LOSS, forgetful.RANDOM(3)],
    ids=["process kill", "power loss", "random"],
)
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("after", [120, 190])
def test_a_crash_in_the_middle_of_a_recovery_loses_nothing_promised(
    after: int, every: int, policy: forgetful.CrashPolicy
) -> None:
    fs, promises = _left_by(Scenario, after)
    kept = policy is forgetful.PROCESS_KILL
    with crash_points(
        fs, lambda: check(fs.found_after(policy), promises, kept=kept, opened=_opened_behind), every
    ) as points:
        directory = _opened_behind(fs)
    assert points.visited > 30
    for key, log in directory.logs.items():
        promises.durable[key] = log.log_end_offset  # what is served is on the disk
    check(fs.found_after(forgetful.POWER_LOSS), promises, kept=False, opened=_opened_behind)
    directory.abandon()


def test_a_disk_ack_after_a_recovery_includes_the_recovered_records() -> None:
    fs, promises = _left_by(Scenario, 190)
    directory = _opened_behind(fs)
    ends = {}
    for key, log in directory.logs.items():
        view = memoryview(bytearray(batch(b"after the recovery")))
        append_one(log, view)
        log.flusher.flush()
        ends[key] = log.log_end_offset
    found = _opened_behind(fs.found_after(forgetful.POWER_LOSS))
    assert {key: log.log_end_offset for key, log in found.logs.items()} == ends
    assert all(log.state.damaged == [] for log in found.logs.values())
    assert promises.topics
