"""The end of a process that does not end."""

from io import BytesIO
from typing import cast

import trio
from trio.testing import memory_stream_pair

from seglog_broker.workers.pool import END_SECONDS, Process


class Hanging:
    """A process that waits for a file system that does not answer: no signal ends it until then."""

    returncode = None
    kills = 0

    def __init__(self) -> None:
        self.stdin, self.stdout = memory_stream_pair()

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> None:
        await trio.sleep_forever()


async def test_one_that_hangs_in_the_place_of_a_backup_holds_up_no_stop(autojump_clock: trio.testing.MockClock) -> None:
    hanging = Hanging()
    process = Process("process", cast("trio.Process", hanging), BytesIO())
    await process.end()
    assert (hanging.kills, trio.current_time()) == (1, END_SECONDS)
    await process.send(b"a line")  # as by a task that did not know
