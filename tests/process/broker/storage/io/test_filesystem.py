"""Locks and holds between processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seglog_broker.storage.io.filesystem import PosixFileSystem

TRY_TO_LOCK = """
import sys
from seglog_broker.storage.io.filesystem import PosixFileSystem
try:
    PosixFileSystem().lock(sys.argv[1])
except BlockingIOError as error:
    print(error)
    sys.exit(3)
"""


def test_a_lock_excludes_another_process(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))

    def exit_code_of_other_process() -> int:
        command = [sys.executable, "-c", TRY_TO_LOCK, path]
        done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
        if sys.platform == "linux" and done.returncode == 3:
            assert done.stdout.startswith(f"process {os.getpid()}, "), "it says who holds the lock"
        return done.returncode

    lock = PosixFileSystem().lock(path)
    assert exit_code_of_other_process() == 3
    assert exit_code_of_other_process() == 3
    lock.release()
    assert exit_code_of_other_process() == 0


def _heir(directory: Path) -> subprocess.Popen[bytes]:
    """A process that inherited the hold of an ended process; it runs until its stdin ends."""
    hold = PosixFileSystem().hold(str(directory))
    heir = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=hold.descriptors
    )
    hold.release()
    return heir


def test_a_directory_is_not_held_before_the_heirs_of_an_earlier_holder_have_ended(tmp_path: Path) -> None:
    with _heir(tmp_path) as heir:
        assert heir.stdin is not None
        threading.Timer(0.2, heir.stdin.close).start()
        PosixFileSystem().hold(str(tmp_path)).release()
        assert heir.wait(60) == 0


def test_heirs_that_do_not_end_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    fs.orphans_wait_seconds = 0.0
    with _heir(tmp_path) as heir:
        with pytest.raises(BlockingIOError):
            fs.hold(str(tmp_path))
        assert heir.stdin is not None
        heir.stdin.close()
