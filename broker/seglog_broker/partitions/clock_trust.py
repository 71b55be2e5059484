"""Whether the wall clock may be trusted with what is deleted by age: records, offsets, producers, tombstones.

A clock that jumps ahead would have everything deleted that seems old by then. So the time by which things are deleted
is not that of the wall clock at once: where it runs ahead of the loop's clock, which cannot be set, the former time
goes on until the new one has held for QUARANTINE_SECONDS, however short the intervals of the checks are. A clock that
is corrected before then has deleted nothing. The last trusted time is kept in ``seglog-clock.json``, so a jump while
the broker is stopped is found, too.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.storage.directory.identity import decode_trusted_time, encode_trusted_time
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filenames import CLOCK_FILE
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, keep_copy
from seglog_broker.texts import time_text

log = get_logger()

CLOCK_JUMP_MS_MAX: Final = 60_000
"""By how much the wall clock may run ahead of the loop's clock within QUARANTINE_SECONDS, as clocks that are adjusted
little by little do."""

STOP_MS_MAX: Final = 86_400_000
"""How long the broker may have been stopped by its wall clock; a longer time is taken for a jump, until it has held."""

QUARANTINE_SECONDS: Final = 3600.0
"""How long a time that the wall clock jumped ahead to must hold, by the loop's clock, before anything is deleted by
it."""


class ClockTrust:
    """Compares the wall clock with the loop's. One for the whole broker; each question looks at both clocks."""

    def __init__(self, clock: Clock, fs: FileSystem, directory: str) -> None:
        """Reads the last trusted time in the log ``directory``. One that is not understood is copied and ignored."""
        self._clock = clock
        self._fs = fs
        self._path = f"{directory}/{CLOCK_FILE}"
        self._wall_ms: int | None = None  # the wall clock when it was trusted last, at ``_loop``
        self._loop = 0.0
        self._ahead_max = CLOCK_JUMP_MS_MAX
        self.problem: str | None = None
        """What was wrong with the file."""
        self._suspect: tuple[int, float] | None = None  # by how much it ran ahead, and loop time of the first look then
        self.saved_ms = self._read()
        """The last time that was trusted before this start."""

    def _read(self) -> int | None:
        if not self._fs.exists(self._path):
            return None
        try:
            return decode_trusted_time(read_file(self._fs, self._path))
        except MalformedJsonError as error:
            self.problem = f"{CLOCK_FILE} is ignored: {error}; {keep_copy(self._fs, self._path)}"
            log.warning("clock_file_ignored", path=self._path, reason=self.problem)
        return None

    def now_ms(self) -> int:
        """The time by which things may be deleted: the wall clock's, or where that has jumped ahead, the former one."""
        wall_ms, loop = self._clock.now_ms(), trio.current_time()
        if self._wall_ms is None:
            self._wall_ms, self._loop = wall_ms, loop
            if self.saved_ms is not None and wall_ms - self.saved_ms > STOP_MS_MAX:
                self._wall_ms, self._ahead_max = self.saved_ms, STOP_MS_MAX
        expected = self._wall_ms + round((loop - self._loop) * 1000)
        ahead = wall_ms - expected
        if ahead <= self._ahead_max:
            if self._suspect is not None:
                log.info("clock_corrected", consequence="things are deleted by age again")
            if self._suspect is not None or ahead < -CLOCK_JUMP_MS_MAX or loop - self._loop >= QUARANTINE_SECONDS:
                self._trust(wall_ms, loop)
            return wall_ms
        if self._suspect is None or abs(ahead - self._suspect[0]) > CLOCK_JUMP_MS_MAX:
            self._suspect = ahead, loop
            log.warning(
                "clock_jumped",
                milliseconds=ahead,
                consequence="nothing is deleted by age that was not due before",
                until_it_held_seconds=QUARANTINE_SECONDS,
            )
        elif loop - self._suspect[1] >= QUARANTINE_SECONDS:
            log.warning("clock_trusted", now=time_text(wall_ms), consequence="things are deleted by age again")
            self._trust(wall_ms, loop)
            return wall_ms
        return expected

    def _trust(self, wall_ms: int, loop: float) -> None:
        self._wall_ms, self._loop = wall_ms, loop
        self._suspect, self._ahead_max = None, CLOCK_JUMP_MS_MAX

    @property
    def is_held(self) -> bool:
        """Whether the wall clock has jumped ahead, and the new time has not held for long enough yet."""
        self.now_ms()
        return self._suspect is not None

    @property
    def hold(self) -> tuple[int, int]:
        """(milliseconds that the wall clock jumped ahead, milliseconds until they are trusted); zeros if it is."""
        self.now_ms()
        if self._suspect is None:
            return 0, 0
        ahead, since = self._suspect
        return ahead, max(0, round((since + QUARANTINE_SECONDS - trio.current_time()) * 1000))

    def prepare_save(self) -> Callable[[], None] | None:
        """A write of the trusted time, to run in a thread; None while the clock is not trusted. It raises OSError."""
        if self.is_held:
            return None
        return partial(write_file_atomically, self._fs, self._path, encode_trusted_time(self._clock.now_ms()))
