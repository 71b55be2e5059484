"""Progress of a job, on stderr."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from seglog.cli.terminal import draw_line

ResultT = TypeVar("ResultT")
Measure = Callable[[ResultT], tuple[int, int]]
"""The records and bytes of a task's result, for the progress."""

_LOOK_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 10.0
"""Between two lines about progress where stderr is not a terminal."""


@dataclass
class Progress:
    """Writes lines to stderr; in a terminal the last one is overwritten."""

    job: str
    is_terminal: bool = field(default_factory=lambda: sys.stderr.isatty())  # noqa: PLW0108 - the one of now
    started: float = field(default_factory=time.monotonic)

    def say(self, sentence: str) -> None:
        """Write a line about the current step."""
        if self.is_terminal:
            draw_line("")
        print(f"seglog {self.job}: {sentence}", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return round(time.monotonic() - self.started, 3)

    @contextmanager
    def watching(self, look: Callable[[], str]) -> Iterator[None]:
        """While the block runs, show every change in the result of ``look``, which a thread calls."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(look, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            if self.is_terminal:
                draw_line("")

    def _watch(self, look: Callable[[], str], done: threading.Event) -> None:
        shown, shown_at = "", time.monotonic()
        while not done.wait(_LOOK_SECONDS):
            line = ""
            with suppress(Exception):  # Spark or the client may be closing; a lost line does no harm
                line = look()
            now = time.monotonic()
            if line == shown or not line:
                continue
            if self.is_terminal:
                draw_line(f"seglog {self.job}: {line}, {self.seconds:.0f} s")
            elif now < shown_at + _LINE_SECONDS:
                continue
            else:
                self.say(line)
            shown, shown_at = line, now
