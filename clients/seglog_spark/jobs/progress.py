"""How far a job is, on stderr."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.words import count_of

_CLEAR_LINE: Final = "\r\x1b[K"
_LOOK_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 10.0
"""Between two lines about progress where nobody watches a terminal."""


@dataclass
class Progress:
    """Lines on stderr; in a terminal the last one is written over."""

    job: str
    is_terminal: bool = field(default_factory=sys.stderr.isatty)
    started: float = field(default_factory=time.monotonic)

    def say(self, sentence: str) -> None:
        """A step that was taken, or is."""
        clear = _CLEAR_LINE if self.is_terminal else ""
        print(f"{clear}seglog {self.job}: {sentence}", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return round(time.monotonic() - self.started, 3)

    @contextmanager
    def watching(self, spark: Any) -> Iterator[None]:
        """Show how many tasks are done while the block runs."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark.sparkContext.statusTracker(), done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            if self.is_terminal:
                print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def _watch(self, tracker: Any, done: threading.Event) -> None:
        shown, shown_at = "", time.monotonic()
        while not done.wait(_LOOK_SECONDS):
            try:
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - Spark is ending, and it is only a line
                return
            line = ", ".join(
                f"{stage.numCompletedTasks:,} of {count_of(stage.numTasks, 'task')}" for stage in stages if stage
            )
            now = time.monotonic()
            if not line or line == shown:
                continue
            if self.is_terminal:
                sys.stderr.write(f"{_CLEAR_LINE}seglog {self.job}: {line} done, {self.seconds:.0f} s")
                sys.stderr.flush()
            elif now >= shown_at + _LINE_SECONDS:
                self.say(f"{line} done")
                shown_at = now
            shown = line
