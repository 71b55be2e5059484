"""A log directory that is removed or replaced under a running broker."""

import pytest
import trio

from seglog_broker.server import TASKS
from seglog_broker.storage.io.filenames import LOCK_FILE
from seglog_broker.tasks.resources import DIRECTORY_SECONDS
from seglog_protocol.errors import LogDirectoryError, PartitionReadOnlyError
from tests.appends import append_batch
from tests.logs import batch
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, living, with_topic

LOCK = f"/data/{LOCK_FILE}"


def replace(fs: TimedDisk) -> None:
    """Replace the directory as far as a broker can see: another lock file than the one it holds."""
    fs.unlink(LOCK)
    fs.load({LOCK: b""})


async def test_after_the_directory_is_replaced(clock: LoopClock, fs: TimedDisk) -> None:
    """After the directory is replaced nothing is acked at disk and nothing written to the new one."""
    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker)
        append(broker, 3)
        replace(fs)
        before = fs.snapshot()
        encoded = batch(b"late")
        pending = append_batch(broker, encoded, ack="disk")
        [result] = (await pending.wait()).partitions
        assert isinstance(result.error, PartitionReadOnlyError)
        assert "removed or replaced" in result.error.message
    changed = {path for path, content in fs.snapshot().items() if before.get(path) != content}
    assert changed <= {"/data/t-0/00000000000000000000.log"}, "no checkpoint, no mark, no sign of a clean stop"


async def test_a_broker_whose_directory_is_replaced_stops_and_says_why(clock: LoopClock, fs: TimedDisk) -> None:
    with pytest.RaisesGroup(LogDirectoryError, flatten_subgroups=True) as caught:
        async with living(fs, clock, tasks=TASKS) as broker:
            await with_topic(broker)
            await trio.sleep(10 * DIRECTORY_SECONDS)
            assert broker.directory.lock.is_in_place
            replace(fs)
            await trio.sleep(2 * DIRECTORY_SECONDS)
    assert "was removed or replaced" in str(caught.value.exceptions)
