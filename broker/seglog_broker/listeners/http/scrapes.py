"""Places of scrapes: few pages of metrics are made at a time, however many ask, and none waits for one that stalls.

They are made when the loop has nothing else to do, or a little later.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from seglog_broker.runtime.slow_readers import CutError

SCRAPES_MAX: Final = 8
"""Pages of metrics that are made at a time."""

PATIENCE_SECONDS: Final = 5.0
"""How long such a page may wait for its peer to read, in all its parts together, once others wait for its place."""

TURNS_GIVEN_MAX: Final = 4
"""Turns of the loop that a part of a page waits for while others have something to do. A page of 100,000 samples
has some 400 parts, and a turn takes 2 ms where producers send without a pause: it is delayed by some 4 s at most, and
by 1 ms more for each part while syncs are awaited."""


class Scrapes:
    """The places of the pages that are made now, for one listener."""

    def __init__(self, asked_max: int) -> None:
        """``asked_max`` is the most pages that are made or wait to be."""
        self.asked_max = asked_max
        self.scrapes_max = SCRAPES_MAX
        self.patience_seconds = PATIENCE_SECONDS
        self._taken = 0  # places
        self._turns = trio.Lock()
        self._running: set[Scrape] = set()
        self._waiting: dict[trio.Event, None] = {}  # the oldest first

    def __len__(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of pages that wait for a place."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no other page may wait."""
        return self._taken + len(self._waiting) >= self.asked_max

    async def turn(self, is_busy: Callable[[], bool], rest: Callable[[], Awaitable[None]]) -> None:
        """Wait for a turn of the loop in which ``is_busy`` says that nothing else is to be done.

        That is the next one, or one of TURNS_GIVEN_MAX behind it, after the ``rest`` of ``Offload``, unless other pages
        wait for a place. Of all pages one waits for a turn at a time: else they would keep each other busy.
        """
        async with self._turns:  # also a free lock gives others a turn
            if not self._waiting:
                await rest()
            for _ in range(TURNS_GIVEN_MAX):
                if not is_busy():
                    return
                await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def place(self) -> "AsyncIterator[Scrape]":
        """Wait for a place, for the page that is made within this block."""
        if self._taken >= self.scrapes_max or self._waiting:
            await self._wait()
        else:
            self._taken += 1
        scrape = Scrape(self)
        self._running.add(scrape)
        try:
            yield scrape
        finally:
            self._running.discard(scrape)
            self._give_back()

    async def _wait(self) -> None:
        event = trio.Event()
        self._waiting[event] = None
        for scrape in self._running:
            scrape.note_waiting()
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._give_back()
            raise
        finally:
            self._waiting.pop(event, None)

    def _give_back(self) -> None:
        """The place is that of the one that has waited longest, if there is one."""
        following = next(iter(self._waiting), None)
        if following is None:
            self._taken -= 1
        else:
            del self._waiting[following]
            following.set()


class Scrape:
    """A page that is made now."""

    def __init__(self, scrapes: Scrapes) -> None:
        self._scrapes = scrapes
        self._waited = 0.0  # for its peer, in its parts so far
        self._began = 0.0  # to wait now
        self._scope: trio.CancelScope | None = None

    async def send(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Await ``flush``, which waits for the peer to read. Raises CutError if others have waited too long for that.

        Raises what ``flush`` raises.
        """
        self._began = trio.current_time()
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._scrapes.waiting:
                self.note_waiting()
            try:
                await flush()
            finally:
                self._waited += trio.current_time() - self._began
                self._scope = None
        if scope.cancelled_caught:
            raise CutError(f"others wait to be shown metrics, and it reads too slowly ({self._waited:.0f} s)")

    def note_waiting(self) -> None:
        """Others wait for its place from now on."""
        if self._scope is not None and self._scope.deadline == math.inf:
            self._scope.deadline = self._began + max(0.0, self._scrapes.patience_seconds - self._waited)
