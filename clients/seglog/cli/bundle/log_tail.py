"""The end of the broker's log: a file that is named, or where its standard error goes, if that is known here."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

BYTES_MAX: Final = 2 << 20
JOURNAL_LINES_MAX: Final = 5_000
_JOURNAL_SECONDS: Final = 30
_UNIT: Final = re.compile(r"/([\w.@:\\-]+\.service)$", re.MULTILINE)


class LogTail(NamedTuple):
    """The end of a log, and where it is from; ``why_not`` says why there is none."""

    source: str = ""
    text: str = ""
    why_not: str = ""


def tail_of(path: str) -> LogTail:
    """The end of a file, from the beginning of a line."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - BYTES_MAX))
            content = file.read(BYTES_MAX)
    except OSError as error:
        return LogTail(why_not=f"{path}: {error.strerror}")
    if size > BYTES_MAX:
        content = content.partition(b"\n")[2]
    return LogTail(path, content.decode(errors="backslashreplace"))


def tail_of_process(process: int) -> LogTail:
    """The end of what a process of this machine writes to standard error: a file, or the journal of its unit."""
    try:
        target = Path(f"/proc/{process}/fd/2").readlink()
    except OSError as error:
        return LogTail(why_not=f"standard error of process {process} cannot be looked at: {error.strerror}")
    if str(target).startswith("socket:"):
        return _journal_of(process)
    if target.is_file():
        return tail_of(str(target))
    return LogTail(why_not=f"the broker's standard error is {target}: name its log with --log FILE")


def _journal_of(process: int) -> LogTail:
    journalctl = shutil.which("journalctl")
    try:
        unit = _UNIT.search(Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8"))
    except OSError:
        unit = None
    if journalctl is None or unit is None:
        return LogTail(why_not="the broker logs to a socket that is no unit's journal: name its log with --log FILE")
    command = [journalctl, "--unit", unit[1], "--lines", str(JOURNAL_LINES_MAX), "--no-pager", "--output", "short-iso"]
    try:
        done = subprocess.run(  # noqa: S603 - a program of the system, with a unit's name
            command, capture_output=True, timeout=_JOURNAL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return LogTail(why_not=f"journalctl: {error}")
    if done.returncode != 0:
        return LogTail(why_not=f"journalctl: {done.stderr.decode(errors='replace').strip()}")
    return LogTail(f"journal of {unit[1]}", done.stdout[-BYTES_MAX:].decode(errors="backslashreplace"))
