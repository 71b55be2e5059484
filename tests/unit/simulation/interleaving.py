"""An offload for simulations: other tasks run before, between and after the flushes of a round, as with a slow disk."""

from collections.abc import Callable, Sequence
from random import Random

import trio

from seglog_broker.runtime.offload import Arguments, T, outcomes_of
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush, begin_flushes, run_flushes
from seglog_broker.testing.offload import InlineOffload


class InterleavingOffload(InlineOffload):
    """Lets up to three turns of the loop pass wherever a slow disk would."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self.dice = dice

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        outcomes: list[OSError | None] = []
        for flush in flushes:
            await self._let_others_work()
            pending = begin_flushes(fs, [flush])
            await self._let_others_work()
            outcomes += run_flushes(fs, [flush]) if pending is None else await outcomes_of(pending)
        await self._let_others_work()
        return outcomes

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        await self._let_others_work()
        return fn(*args)

    async def _let_others_work(self) -> None:
        for _ in range(self.dice.randrange(4)):
            await trio.lowlevel.checkpoint()
