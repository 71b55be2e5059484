"""What the log has of a day: nothing where nothing happens, and of a problem one line, and one when it ends."""

import errno

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.testing.forgetful_script import Fault
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, delete, living, with_topic

HOUR = 3_600.0


@pytest.mark.soak
async def test_a_quiet_day_writes_nothing_at_info(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 14)  # closed segments for the scrub, and an active one
        await with_topic(broker, "compacted", cleanup_policy="compact")
        await trio.sleep(HOUR)  # what follows a start and an append is over
        with capture_logs() as logged:
            await trio.sleep(24 * HOUR)
        assert broker.metrics.scrub_passes > 0, "the tasks ran"
    assert [entry for entry in logged if entry["log_level"] != "debug"] == []


@pytest.mark.parametrize(
    ("operation", "path", "begins", "ends"),
    [
        ("open", "recovery-point-offset-checkpoint.tmp", "checkpoint_not_written", "checkpoint_written"),
        ("open", "seglog-clock.json.tmp", "clock_not_saved", "clock_saved"),
        ("fdatasync", "seglog-ballast", "ballast_not_made", "ballast_made"),
        ("remove_tree", "/u-0.", "deletion_postponed", "files_removed"),
        ("open", "seglog-partition.json.tmp", "task_postponed", "task_resumed"),
    ],
)
@pytest.mark.soak
async def test_a_problem_has_one_line_while_it_lasts_and_one_when_it_ends(
    operation: str, path: str, begins: str, ends: str, clock: LoopClock, fs: TimedDisk
) -> None:
    """Each is something that the broker tries again every few seconds or minutes."""
    async with living(fs, clock, "seglog.disk.ballast.bytes=4096", "log.initial.task.delay.ms=2000") as broker:
        for topic in ("t", "u"):
            await with_topic(broker, topic)
        await delete(broker, "u")
        append(broker)
        fs.inject(Fault(operation, lambda name: path in name, errno.EIO, sticky=True))
        with capture_logs() as logged:
            await trio.sleep(HOUR)
            assert [entry["event"] for entry in logged].count(begins) == 1
            assert ends not in [entry["event"] for entry in logged]
            fs.heal()
            await trio.sleep(HOUR)
    told = [entry["event"] for entry in logged if entry["event"] in {begins, ends}]
    assert told == [begins, ends]
    assert [entry["log_level"] for entry in logged if entry["event"] == begins] == ["warning"]


class BlindDisk(TimedDisk):
    """A disk whose free space cannot be measured while it ``is_blind``."""

    is_blind = False

    def free_bytes(self, path: str) -> int:
        if self.is_blind:
            raise OSError(errno.EIO, "Input/output error")
        return super().free_bytes(path)


async def test_free_space_that_is_not_known_is_told_once(clock: LoopClock, fs: TimedDisk) -> None:
    fs = BlindDisk(clock)
    async with living(fs, clock, tasks=("free space",)):
        with capture_logs() as logged:
            fs.is_blind = True
            await trio.sleep(HOUR)
            fs.is_blind = False
            await trio.sleep(HOUR)
    assert [entry["event"] for entry in logged] == ["free_space_unknown", "free_space_known"]
