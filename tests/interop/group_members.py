"""Programs of others that work until they are ended, such as members of groups."""

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import started_into_files


class Member:
    """A client that has joined the group, or will."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self._path = path
        self._process = started_into_files(command, path, path.with_suffix(".err"))

    def leave(self) -> None:
        """Have it commit and leave the group, and end."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) in (0, 128 + signal.SIGTERM), self.errors()

    def kill(self) -> None:
        """SIGKILL: nobody hears of it any more."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Be gone, if it is not yet."""
        if self._process.poll() is None:
            self.kill()

    def output(self) -> str:
        """What it wrote to stdout."""
        return self._path.read_text(encoding="utf-8")

    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._path.with_suffix(".err").read_text(encoding="utf-8")

    def assigned(self) -> set[tuple[str, int]]:
        """What it has, as it told last."""
        told = [value for what, value in self._told() if what == "assigned"]
        return {(topic, number) for topic, number in told[-1]} if told else set()

    def read(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each record that it has read."""
        told = [value for what, value in self._told() if what == "record"]
        return [(topic, number, offset) for topic, number, offset in told]

    def _told(self) -> Iterator[tuple[str, Any]]:
        for line in self._path.read_bytes().split(b"\n")[:-1]:
            yield from json.loads(line).items()


@contextmanager
def ended(processes: Sequence[Member]) -> Iterator[None]:
    """End the processes afterwards; an error gets a note with the end of each one's output."""
    try:
        yield
    except BaseException as error:
        for process in processes:
            error.add_note(process.output()[-2000:] + process.errors()[-2000:])
        raise
    finally:
        for process in processes:
            process.end()
