"""A disk that is full now and then, from any operation on."""

from random import Random
from typing import Final

import trio

from seglog_broker.testing.forgetful import ForgetfulFileSystem, Operation

OPERATIONS_MAX: Final = 150
"""Operations until it is full, at most."""
ROOM_BYTES_MAX: Final = 3_000
"""Bytes that a full disk still takes, at most: some writes are cut short."""
FULL_SECONDS_MAX: Final = 0.6


class FullDisk:
    """Has a file system run out of room, and gives it room again after a while, over and over."""

    def __init__(self, fs: ForgetfulFileSystem, dice: Random) -> None:
        self._fs: Final = fs
        self._dice: Final = dice
        self._left: int | None = None
        self._is_full = trio.Event()

    def note(self, _: Operation) -> None:
        """An operation begins."""
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0 and not self._is_full.is_set():
            self._fs.limit_free_bytes(self._dice.randrange(ROOM_BYTES_MAX))
            self._is_full.set()

    async def run(self) -> None:
        """Give it room again, until cancelled; there is room afterwards."""
        try:
            while True:
                self._left = self._dice.randrange(OPERATIONS_MAX)
                await self._is_full.wait()
                await trio.sleep(self._dice.random() * FULL_SECONDS_MAX)
                self._fs.limit_free_bytes(None)
                self._is_full = trio.Event()
        finally:
            self._left = None
            self._fs.limit_free_bytes(None)
